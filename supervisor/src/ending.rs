//! The order in which a node ends.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::api::Ended;
use crate::celld::{Fleet, Stop};
use crate::daemon::{Group, Handles, Name, Order};
use crate::deploy::Runner;
use crate::leave::Leave;
use crate::manager::Parting;
use crate::signals::Signals;

/// How long open requests may take to end when the applications serve on: new ones wait for the next supervisor meanwhile.
const RESTART_GRACE: Duration = Duration::from_secs(5);

/// Everything that is to end.
pub(crate) struct Ending<'a> {
    pub(crate) daemons: &'a mut Group,
    pub(crate) handles: &'a Handles,
    pub(crate) fleet: &'a Fleet,
    pub(crate) deploys: &'a Runner,
    pub(crate) parting: Parting,
    /// Absent when there is nobody to leave to, or nobody to say it.
    pub(crate) leave: Option<Leave>,
}

impl Ending<'_> {
    /// Ends it all, in order; asked again, at once.
    pub(crate) async fn end(self, signals: &mut Signals) -> Ended {
        let (handles, fleet, parting) = (self.handles.clone(), self.fleet, self.parting);
        let hurry = CancellationToken::new();
        let in_order = self.in_order(hurry.clone());
        tokio::pin!(in_order);
        tokio::select! {
            biased;
            () = &mut in_order => Ended::Stopped,
            () = signals.stop() => {
                tracing::warn!("asked again: killing what is still there");
                hurry.cancel();
                handles.kill_all();
                match parting {
                    Parting::Stop => drop(tokio::join!(in_order, fleet.stop(Stop::Killed))),
                    Parting::Leave => in_order.await,
                }
                Ended::Hurried
            }
        }
    }

    /// First the routes, with everything still there; then the servers, which finish their requests; then the applications, all at
    /// once; then what they and their servers need.
    async fn in_order(self, hurry: CancellationToken) {
        let Self { daemons, handles, fleet, deploys, parting, leave } = self;
        if let (Parting::Stop, Some(leave)) = (parting, &leave) {
            tokio::select! {
                biased;
                () = hurry.cancelled() => {}
                () = leave.leave() => {}
            }
        }
        stop_front(daemons, handles, parting).await;
        match parting {
            Parting::Stop => drop(tokio::join!(fleet.stop(Stop::Drained), deploys.stop())),
            Parting::Leave => deploys.stop().await,
        }
        daemons.stop(&[Name::Routerd]).await;
        daemons.stop(&[Name::Registryd]).await;
        daemons.stop(&[Name::Bucketd]).await;
    }
}

async fn stop_front(daemons: &mut Group, handles: &Handles, parting: Parting) {
    const FRONT: [Name; 2] = [Name::Apiserver, Name::Ingressd];
    let grace = if parting == Parting::Leave { RESTART_GRACE } else { Duration::MAX };
    if tokio::time::timeout(grace, daemons.stop(&FRONT)).await.is_err() {
        FRONT.iter().for_each(|name| handles.order(*name, Order::Kill));
        daemons.stop(&FRONT).await;
    }
}
