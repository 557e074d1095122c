//! Writing this node's own record, which nobody else writes but to ask it to leave.

use std::time::Duration;

use scafo_core::record::{NodeRecord, to_bytes};
use scafo_core::{NodeId, Problem, key};
use scafo_store::{Condition, Put, PutOptions};

use crate::daemon::Core;
use crate::registry::engine::WRITE_ID;
use crate::registry::{Intent, Mono, Stored};

/// How long one write of the record is tried before its content is decided anew.
pub(crate) const WRITE: Duration = Duration::from_secs(10);
/// How long a hint may take that a process is no longer offered: longer than hints are held together (1 s).
const HINT: Duration = Duration::from_secs(2);

/// How a write ended.
pub(crate) struct Wrote {
    pub(crate) outcome: Result<Stored<NodeRecord>, Problem>,
    pub(crate) began: Mono,
}

/// Writes the node's record: over a known body if there is one and it still stands, else over what is there. The first is one
/// request instead of two, twice a minute on every node. `told` is the record of the last write that is known to have landed:
/// what differs from it in the fleet's eyes is hinted, whoever's write it was that put it there.
pub(crate) async fn write(
    core: &Core,
    id: &NodeId,
    over: Option<Stored<NodeRecord>>,
    told: &NodeRecord,
    mutate: impl Fn(&mut NodeRecord) -> Result<(), Problem> + Send + Sync,
) -> Result<Stored<NodeRecord>, Problem> {
    if let Some(Stored { mut record, etag, .. }) = over {
        mutate(&mut record)?;
        let write_id = format!("{:032x}", rand::random::<u128>());
        let options = PutOptions {
            condition: Condition::Matches(etag),
            metadata: [(WRITE_ID.to_owned(), write_id.clone())].into(),
            content_type: Some("application/json".to_owned()),
        };
        let put = core.registry.bucket().put(&key::node(id.as_str()), to_bytes(&record).into(), options).await;
        if let Ok(Put::Written(etag)) = put {
            return Ok(Stored { record, etag, write_id: Some(write_id), before: Vec::new(), last_modified: None });
        }
        // Whatever it was, the write below looks before it writes.
    }
    let intent = Intent::new().within(WRITE);
    core.registry.change_node(&intent, id, Some(told), mutate).await.map(|changed| changed.stored)
}

/// Waits until the others can know that this node offers less: a hold counts from then. Without the hint they find it later, and
/// holding for ever helps nobody.
pub(crate) async fn tell(core: &Core) {
    if core.registry.flush_hints(HINT).await.is_err() {
        tracing::warn!("the change hint did not go out: other nodes may send requests here for longer");
    }
}
