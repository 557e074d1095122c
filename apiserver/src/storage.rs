//! Calls to the registry daemon about certificate storage.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use scafo_core::problem::{Problem, ProblemCode};
use scafo_proto::status::to_problem;
use scafo_proto::storage::storage_client::StorageClient;
use scafo_proto::storage::{
    DeleteRequest, GetRequest, KeysPiece, ListRequest, LockRequest, PutPiece, StatRequest, UnlockRequest, ValuePiece,
};
use scafo_proto::{chunk, transport};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Streaming;
use tonic::transport::Channel;

use crate::registry::call;

/// Values of the largest size that are received at once. A terminator writes a few at a time, nearly all far smaller.
const LARGEST_AT_ONCE: u64 = 4;
/// How long a value waits for room: less than the 30 s that terminators wait for an answer.
const TURN: Duration = Duration::from_secs(10);
/// What room is counted in.
const UNIT_BYTES: u64 = 1024;

/// A handle to the registry daemon.
pub(crate) struct Storage {
    client: StorageClient<Channel>,
    /// Largest value in bytes.
    pub(crate) value_bytes: u64,
    /// Room for values that are being received, in units.
    room: Arc<Semaphore>,
}

/// The beginning of a stored value, and the rest of it.
pub(crate) struct Value {
    pub(crate) size: u64,
    pub(crate) first: Bytes,
    pub(crate) rest: Streaming<ValuePiece>,
}

type Answer<T> = Result<T, Problem>;

impl Storage {
    pub(crate) fn new(socket: &Path, value_bytes: u64) -> Self {
        let units = Semaphore::new(usize::try_from(LARGEST_AT_ONCE * units(value_bytes)).unwrap_or(usize::MAX >> 3));
        Self { client: StorageClient::new(transport::channel(socket)), value_bytes, room: Arc::new(units) }
    }

    /// Waits for room to receive a value: one of its announced length, or of the largest.
    ///
    /// A value is held whole before it is passed on: a stream that is cut looks to the other end as if it had ended, and half a
    /// certificate must never be stored. It can also be passed on again after the registry daemon was restarted.
    ///
    /// # Errors
    /// `draining` when there is none for too long.
    pub(crate) async fn room(&self, announced: Option<u64>) -> Answer<OwnedSemaphorePermit> {
        let bytes = announced.unwrap_or(self.value_bytes).min(self.value_bytes);
        let units = u32::try_from(units(bytes)).unwrap_or(u32::MAX);
        match tokio::time::timeout(TURN, self.room.clone().acquire_many_owned(units)).await {
            Ok(Ok(room)) => Ok(room),
            Ok(Err(_)) | Err(_) => {
                Err(Problem::new(ProblemCode::Draining, "too many values are being received; try again in a moment"))
            }
        }
    }

    pub(crate) async fn put(&self, key: &str, value: Bytes) -> Answer<()> {
        let stored = transport::read_again(transport::STORE, |left| {
            let mut client = self.client.clone();
            let pieces: Vec<PutPiece> = chunk::split(value.clone())
                .enumerate()
                .map(|(index, (data, _))| PutPiece {
                    key: if index == 0 { key.to_owned() } else { String::new() },
                    data,
                })
                .collect();
            async move { client.put(transport::within(left, stream::iter(pieces))).await }
        });
        stored.await.map(drop).map_err(|status| to_problem(&status))
    }

    pub(crate) async fn get(&self, key: &str) -> Answer<Value> {
        let request = GetRequest { key: key.to_owned() };
        let found = transport::read_again(transport::STORE, |left| {
            let (mut client, request) = (self.client.clone(), request.clone());
            async move {
                let mut rest = client.get(transport::within(left, request)).await?.into_inner();
                Ok(rest.message().await?.map(|first| (first, rest)))
            }
        });
        let (ValuePiece { size, data }, rest) =
            found.await.map_err(|status| to_problem(&status))?.ok_or_else(defect)?;
        Ok(Value { size, first: data, rest })
    }

    pub(crate) async fn delete(&self, key: &str) -> Answer<()> {
        let reply = call!(self, transport::STORE, delete, DeleteRequest { key: key.to_owned() });
        reply.map(drop).map_err(|status| to_problem(&status))
    }

    /// The first keys, and the rest of them.
    pub(crate) async fn list(&self, prefix: &str, recursive: bool) -> Answer<(Vec<String>, Streaming<KeysPiece>)> {
        let request = ListRequest { prefix: prefix.to_owned(), recursive };
        let listed = transport::read_again(transport::STORE, |left| {
            let (mut client, request) = (self.client.clone(), request.clone());
            async move {
                let mut rest = client.list(transport::within(left, request)).await?.into_inner();
                Ok(rest.message().await?.map(|first| (first.keys, rest)))
            }
        });
        listed.await.map_err(|status| to_problem(&status))?.ok_or_else(defect)
    }

    /// The JSON stat object.
    pub(crate) async fn stat(&self, key: &str) -> Answer<Bytes> {
        let reply = call!(self, transport::STORE, stat, StatRequest { key: key.to_owned() });
        reply.map(|reply| reply.stat).map_err(|status| to_problem(&status))
    }

    /// Takes a lock, or keeps it. A call that is made again after its answer was lost may find the lock held by itself: the
    /// caller then waits as for anybody's, and has it once the registry daemon has let go of it.
    pub(crate) async fn lock(&self, name: &str, owner: &str) -> Answer<()> {
        let request = LockRequest { name: name.to_owned(), owner: owner.to_owned() };
        call!(self, transport::STORE, lock, request).map(drop).map_err(|status| to_problem(&status))
    }

    pub(crate) async fn unlock(&self, name: &str, owner: &str) -> Answer<()> {
        let request = UnlockRequest { name: name.to_owned(), owner: owner.to_owned() };
        call!(self, transport::STORE, unlock, request).map(drop).map_err(|status| to_problem(&status))
    }
}

const fn units(bytes: u64) -> u64 {
    bytes / UNIT_BYTES + 1
}

fn defect() -> Problem {
    Problem::new(ProblemCode::Internal, "").because("a stream without a first piece")
}
