//! `scafo.storage.v1.Storage`: what TLS terminators keep.

use std::pin::Pin;
use std::sync::Arc;

use bytes::BytesMut;
use futures_util::{Stream, stream};
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
use crate::tls::{self, LockOwner, StorageKey, VALUE_BYTES_MAX};

/// Values on their way at once: each takes up to four times `storage.valueBytes` while it is encoded, and almost all are a few KiB.
const VALUES_AT_ONCE: usize = 4;
/// Keys in one piece of a listing: some 100 KiB.
const KEYS_IN_A_PIECE: usize = 1000;

/// The service.
pub(crate) struct StorageService {
    phase: watch::Receiver<Phase>,
    values: Semaphore,
}

type Pieces<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl StorageService {
    pub(crate) fn new(phase: watch::Receiver<Phase>) -> Self {
        Self { phase, values: Semaphore::new(VALUES_AT_ONCE) }
    }

    pub(crate) fn into_server(self) -> StorageServer<Self> {
        StorageServer::new(self)
    }

    async fn core(&self) -> Result<Arc<Core>, Problem> {
        ready(&self.phase).await
    }

    /// Waits for room to hold a value; the call's own deadline bounds it.
    async fn room(&self) -> Result<SemaphorePermit<'_>, Problem> {
        self.values.acquire().await.map_err(|_| Problem::new(ProblemCode::Draining, "this node is stopping"))
    }
}

#[tonic::async_trait]
impl Storage for StorageService {
    async fn put(&self, request: Request<Streaming<PutPiece>>) -> Result<Response<PutReply>, Status> {
        answer("Put", async {
            let core = self.core().await?;
            let _room = self.room().await?;
            let limit = usize::try_from(core.settings.storage_value_bytes).unwrap_or(usize::MAX).min(VALUE_BYTES_MAX);
            let (key, value) = receive(request.into_inner(), limit).await?;
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
            let _room = self.room().await?;
            let value = tls::get(&core.registry, &key).await?;
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
            let _room = self.room().await?;
            Ok(StatReply { stat: json(&tls::stat(&core.registry, &key).await?) })
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

/// A key and the whole of its value. A stream that breaks off is no shorter value.
async fn receive(mut pieces: Streaming<PutPiece>, limit: usize) -> Result<(StorageKey, BytesMut), Problem> {
    let next = async |pieces: &mut Streaming<PutPiece>| pieces.message().await.map_err(|status| to_problem(&status));
    let unnamed = || Problem::new(ProblemCode::InvalidInput, "a value needs a key").titled("Invalid storage key");
    let PutPiece { key, data } = next(&mut pieces).await?.ok_or_else(unnamed)?;
    let key: StorageKey = key.parse()?;
    let mut value = BytesMut::new();
    let mut more = Some(data);
    while let Some(data) = more {
        if value.len() + data.len() > limit {
            return Err(tls::too_large(limit));
        }
        value.extend_from_slice(&data);
        more = next(&mut pieces).await?.map(|piece| piece.data);
    }
    Ok((key, value))
}
