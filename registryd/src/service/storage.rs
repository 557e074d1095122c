//! `scafo.storage.v1.Storage`: what TLS terminators keep.

use std::pin::Pin;
use std::sync::Arc;

use bytes::BytesMut;
use futures_util::{Stream, TryStreamExt as _, stream};
use scafo_core::{Problem, ProblemCode};
use scafo_proto::chunk::split;
use scafo_proto::status::to_problem;
use scafo_proto::storage::storage_server::{Storage, StorageServer};
use scafo_proto::storage::{
    DeleteReply, DeleteRequest, GetRequest, KeysPiece, ListRequest, LockReply, LockRequest, PutPiece, PutReply,
    StatReply, StatRequest, UnlockReply, UnlockRequest, ValuePiece,
};
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tonic::{Request, Response, Status, Streaming};

use super::{answer, json, ready};
use crate::daemon::{Core, Phase};
use crate::tls::{self, LockOwner, SMALL_BYTES, StorageKey, VALUE_BYTES_MAX};

/// Values on their way at once that are not small: each takes up to four times `storage.valueBytes` while it is encoded.
const LARGE_AT_ONCE: usize = 4;
/// Small ones, as almost all are: 64 MiB in all. Each keeps its place for its whole way to the bucket, and handshakes wait for it.
const SMALL_AT_ONCE: usize = 64;
/// Keys in one piece of a listing: some 100 KiB.
const KEYS_IN_A_PIECE: usize = 1000;

/// The service.
pub(crate) struct StorageService {
    phase: watch::Receiver<Phase>,
    small: Semaphore,
    large: Semaphore,
}

type Pieces<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl StorageService {
    pub(crate) fn new(phase: watch::Receiver<Phase>) -> Self {
        Self { phase, small: Semaphore::new(SMALL_AT_ONCE), large: Semaphore::new(LARGE_AT_ONCE) }
    }

    pub(crate) fn into_server(self) -> StorageServer<Self> {
        StorageServer::new(self)
    }

    async fn core(&self) -> Result<Arc<Core>, Problem> {
        ready(&self.phase).await
    }

    /// Reads with room for a small value, and again with room for any where it turns out to be larger.
    async fn read<T>(
        &self,
        small: impl Future<Output = Result<Option<T>, Problem>> + Send,
        any: impl Future<Output = Result<T, Problem>> + Send,
    ) -> Result<T, Problem> {
        let room = room_in(&self.small).await?;
        if let Some(found) = small.await? {
            return Ok(found);
        }
        drop(room);
        let _room = room_in(&self.large).await?;
        any.await
    }

    /// A key, the whole of its value, and the room for that. A stream that breaks off is no shorter value.
    async fn receive(
        &self,
        mut pieces: impl Stream<Item = Result<PutPiece, Status>> + Send + Unpin,
        limit: usize,
    ) -> Result<(StorageKey, BytesMut, SemaphorePermit<'_>), Problem> {
        let unnamed = || Problem::new(ProblemCode::InvalidInput, "a value needs a key").titled("Invalid storage key");
        let mut room = room_in(&self.small).await?;
        let PutPiece { key, data } = next(&mut pieces).await?.ok_or_else(unnamed)?;
        let key: StorageKey = key.parse()?;
        let mut value = BytesMut::new();
        let mut more = Some(data);
        while let Some(data) = more {
            let size = value.len() + data.len();
            if size > limit {
                return Err(tls::too_large(limit));
            }
            if value.len() <= SMALL_BYTES && size > SMALL_BYTES {
                // Small ones do not wait for this one while it waits.
                drop(room);
                room = room_in(&self.large).await?;
            }
            value.extend_from_slice(&data);
            more = next(&mut pieces).await?.map(|piece| piece.data);
        }
        Ok((key, value, room))
    }
}

/// Waits for room to hold a value; the call's own deadline bounds it.
async fn room_in(values: &Semaphore) -> Result<SemaphorePermit<'_>, Problem> {
    values.acquire().await.map_err(|_| Problem::new(ProblemCode::Draining, "this node is stopping"))
}

async fn next(
    pieces: &mut (impl Stream<Item = Result<PutPiece, Status>> + Send + Unpin),
) -> Result<Option<PutPiece>, Problem> {
    pieces.try_next().await.map_err(|status| to_problem(&status))
}

#[tonic::async_trait]
impl Storage for StorageService {
    async fn put(&self, request: Request<Streaming<PutPiece>>) -> Result<Response<PutReply>, Status> {
        answer("Put", async {
            let core = self.core().await?;
            let limit = usize::try_from(core.settings.storage_value_bytes).unwrap_or(usize::MAX).min(VALUE_BYTES_MAX);
            let (key, value, _room) = self.receive(request.into_inner(), limit).await?;
            tls::put(&core.registry, &key, &value).await?;
            Ok(PutReply {})
        })
        .await
    }

    type GetStream = Pieces<ValuePiece>;

    async fn get(&self, request: Request<GetRequest>) -> Result<Response<Self::GetStream>, Status> {
        answer("Get", async {
            let key: StorageKey = request.into_inner().key.parse()?;
            let core = self.core().await?;
            let registry = &core.registry;
            let value = self.read(tls::get_small(registry, &key), tls::get(registry, &key)).await?;
            let mut size = value.len() as u64;
            let pieces = split(value).map(move |(data, _)| Ok(ValuePiece { size: std::mem::take(&mut size), data }));
            let pieces: Self::GetStream = Box::pin(stream::iter(pieces));
            Ok(pieces)
        })
        .await
    }

    async fn delete(&self, request: Request<DeleteRequest>) -> Result<Response<DeleteReply>, Status> {
        answer("Delete", async {
            let key: StorageKey = request.into_inner().key.parse()?;
            tls::delete(&self.core().await?.registry, &key).await?;
            Ok(DeleteReply {})
        })
        .await
    }

    type ListStream = Pieces<KeysPiece>;

    async fn list(&self, request: Request<ListRequest>) -> Result<Response<Self::ListStream>, Status> {
        answer("List", async {
            let ListRequest { prefix, recursive } = request.into_inner();
            let prefix: Option<StorageKey> = (!prefix.is_empty()).then(|| prefix.parse()).transpose()?;
            let keys = tls::list(&self.core().await?.registry, prefix.as_ref(), recursive).await?;
            let pieces: Vec<_> =
                keys.chunks(KEYS_IN_A_PIECE).map(|keys| Ok(KeysPiece { keys: keys.to_vec() })).collect();
            let pieces: Self::ListStream = Box::pin(stream::iter(pieces));
            Ok(pieces)
        })
        .await
    }

    async fn stat(&self, request: Request<StatRequest>) -> Result<Response<StatReply>, Status> {
        answer("Stat", async {
            let key: StorageKey = request.into_inner().key.parse()?;
            let core = self.core().await?;
            let registry = &core.registry;
            let stat = self.read(tls::stat_small(registry, &key), tls::stat(registry, &key)).await?;
            Ok(StatReply { stat: json(&stat) })
        })
        .await
    }

    async fn lock(&self, request: Request<LockRequest>) -> Result<Response<LockReply>, Status> {
        answer("Lock", async {
            let LockRequest { name, owner } = request.into_inner();
            let (name, owner) = (name.parse()?, LockOwner::parse(&owner)?);
            self.core().await?.locks.lock(name, owner).await?;
            Ok(LockReply {})
        })
        .await
    }

    async fn unlock(&self, request: Request<UnlockRequest>) -> Result<Response<UnlockReply>, Status> {
        answer("Unlock", async {
            let UnlockRequest { name, owner } = request.into_inner();
            let (name, owner) = (name.parse()?, LockOwner::parse(&owner)?);
            self.core().await?.locks.unlock(name, owner).await?;
            Ok(UnlockReply {})
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use bytes::Bytes;
    use futures_util::FutureExt as _;

    use super::*;

    fn service() -> StorageService {
        let starting = Phase::Starting(Problem::new(ProblemCode::Draining, "starting"));
        StorageService::new(watch::channel(starting).1)
    }

    fn pieces(sizes: &[usize]) -> impl Stream<Item = Result<PutPiece, Status>> + Send + Unpin {
        let piece = |size: &usize| Ok(PutPiece { key: "a".to_owned(), data: Bytes::from(vec![7; *size]) });
        stream::iter(sizes.iter().map(piece).collect::<Vec<_>>())
    }

    #[test]
    fn small_values_do_not_wait_for_large_ones() {
        let service = service();
        let taken = service.large.try_acquire_many(LARGE_AT_ONCE.try_into().unwrap()).unwrap();
        let found = service.read(ready(Ok(Some("small"))), pending()).now_or_never();
        assert_eq!(found.unwrap().unwrap(), "small");
        let (_, value, _room) =
            service.receive(pieces(&[SMALL_BYTES / 2, SMALL_BYTES / 2]), usize::MAX).now_or_never().unwrap().unwrap();
        assert_eq!(value.len(), SMALL_BYTES);
        // A large one waits, and has given up its place among the small ones once it may be read.
        let mut large = Box::pin(service.read(ready(Ok(None)), ready(Ok("large"))));
        let mut received = Box::pin(service.receive(pieces(&[SMALL_BYTES, 1]), usize::MAX));
        assert!((&mut large).now_or_never().is_none() && (&mut received).now_or_never().is_none());
        drop(taken);
        assert_eq!(large.now_or_never().unwrap().unwrap(), "large");
        let (_, value, _room) = received.now_or_never().unwrap().unwrap();
        assert_eq!(value.len(), SMALL_BYTES + 1);
        assert_eq!(service.large.available_permits(), LARGE_AT_ONCE - 1);
        assert_eq!(service.small.available_permits(), SMALL_AT_ONCE - 1);
    }

    #[test]
    fn a_value_over_the_limit_is_refused_whatever_its_pieces() {
        for sizes in [&[11][..], &[5, 6], &[10, 1]] {
            let refused = service().receive(pieces(sizes), 10).now_or_never().unwrap().map(drop).unwrap_err();
            assert_eq!(refused.code, ProblemCode::ResourceLimit, "{sizes:?}");
        }
        assert!(service().receive(pieces(&[4, 6]), 10).now_or_never().unwrap().is_ok());
    }
}
