//! The registry's certificate storage, as the tests need it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::MutexGuard;

use bytes::Bytes;
use scafo_core::problem::{Problem, ProblemCode};
use scafo_proto::status::to_status;
use scafo_proto::storage::storage_server::Storage;
use scafo_proto::storage::*;
use serde_json::json;
use tonic::{Request, Response, Status, Streaming};

use crate::fakes::{Boxed, FakeRegistry, Reply, World, refuse, unknown};

/// What is stored.
#[derive(Default)]
pub(crate) struct Stored {
    pub(crate) objects: BTreeMap<String, Bytes>,
    /// Owners by lock.
    pub(crate) locks: BTreeMap<String, String>,
    /// How many calls there were.
    pub(crate) asked: u32,
}

impl FakeRegistry {
    /// The world at a call, which is counted.
    fn asked(&self) -> Result<MutexGuard<'_, World>, Status> {
        let mut world = self.world();
        world.stored.asked += 1;
        refuse(world.refuse.as_ref())?;
        Ok(world)
    }
}

fn good(key: &str) -> Result<(), Status> {
    let printable = key.bytes().all(|byte| (0x20..0x7f).contains(&byte));
    if printable && key.split('/').all(|segment| !["", ".", ".."].contains(&segment)) {
        return Ok(());
    }
    Err(to_status(&Problem::new(ProblemCode::InvalidInput, "no key").titled("Invalid storage key")))
}

#[tonic::async_trait]
impl Storage for FakeRegistry {
    type GetStream = Boxed<ValuePiece>;
    type ListStream = Boxed<KeysPiece>;

    async fn put(&self, request: Request<Streaming<PutPiece>>) -> Reply<PutReply> {
        let mut pieces = request.into_inner();
        let (mut key, mut value) = (None, Vec::new());
        while let Some(piece) = pieces.message().await? {
            key.get_or_insert(piece.key);
            value.extend_from_slice(&piece.data);
        }
        let key = key.unwrap();
        let mut world = self.asked()?;
        good(&key)?;
        world.stored.objects.insert(key, value.into());
        Ok(Response::new(PutReply {}))
    }

    async fn get(&self, request: Request<GetRequest>) -> Reply<Self::GetStream> {
        let key = request.into_inner().key;
        let world = self.asked()?;
        good(&key)?;
        let value = world.stored.objects.get(&key).cloned().ok_or_else(unknown)?;
        let size = value.len() as u64;
        let mut pieces: Vec<_> =
            scafo_proto::chunk::split(value).map(|(data, _)| ValuePiece { size: 0, data }).collect();
        pieces[0].size = size;
        Ok(Response::new(Box::pin(tokio_stream::iter(pieces.into_iter().map(Ok)))))
    }

    async fn delete(&self, request: Request<DeleteRequest>) -> Reply<DeleteReply> {
        let key = request.into_inner().key;
        let mut world = self.asked()?;
        good(&key)?;
        let before = world.stored.objects.len();
        world.stored.objects.retain(|other, _| *other != key && !other.starts_with(&format!("{key}/")));
        if world.stored.objects.len() == before { Err(unknown()) } else { Ok(Response::new(DeleteReply {})) }
    }

    async fn list(&self, request: Request<ListRequest>) -> Reply<Self::ListStream> {
        let ListRequest { prefix, recursive } = request.into_inner();
        let world = self.asked()?;
        let under = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        let keys: BTreeSet<String> = world
            .stored
            .objects
            .keys()
            .filter_map(|key| key.strip_prefix(&under).map(|rest| (key, rest)))
            .map(
                |(key, rest)| {
                    if recursive { key.clone() } else { format!("{under}{}", rest.split('/').next().unwrap()) }
                },
            )
            .collect();
        if keys.is_empty() {
            return Err(unknown());
        }
        let pieces = keys.into_iter().map(|key| Ok(KeysPiece { keys: vec![key] }));
        // An empty piece says nothing and must not show.
        let pieces: Vec<_> = pieces.chain([Ok(KeysPiece { keys: Vec::new() })]).collect();
        Ok(Response::new(Box::pin(tokio_stream::iter(pieces))))
    }

    async fn stat(&self, request: Request<StatRequest>) -> Reply<StatReply> {
        let key = request.into_inner().key;
        let world = self.asked()?;
        good(&key)?;
        let value = world.stored.objects.get(&key).ok_or_else(unknown)?;
        let stat = json!({ "key": key, "modified": "2026-04-01T12:30:00Z", "size": value.len(), "isTerminal": true });
        Ok(Response::new(StatReply { stat: serde_json::to_vec(&stat).unwrap().into() }))
    }

    async fn lock(&self, request: Request<LockRequest>) -> Reply<LockReply> {
        let LockRequest { name, owner } = request.into_inner();
        let mut world = self.asked()?;
        good(&name)?;
        match world.stored.locks.get(&name) {
            Some(holder) if owner.is_empty() || *holder != owner => {
                Err(to_status(&Problem::new(ProblemCode::CasConflict, "it is held")))
            }
            _ => {
                world.stored.locks.insert(name, owner);
                Ok(Response::new(LockReply {}))
            }
        }
    }

    async fn unlock(&self, request: Request<UnlockRequest>) -> Reply<UnlockReply> {
        let UnlockRequest { name, owner } = request.into_inner();
        let mut world = self.asked()?;
        good(&name)?;
        if world.stored.locks.get(&name).is_some_and(|holder| *holder == owner) {
            world.stored.locks.remove(&name);
        }
        Ok(Response::new(UnlockReply {}))
    }
}
