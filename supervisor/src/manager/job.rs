//! Why the service manager wants us to end. A SIGTERM looks the same for `systemctl stop` and `systemctl restart`; the job that
//! systemd runs for our unit tells them apart (`org.freedesktop.systemd1(5)`).

use std::time::Duration;

use zbus::Connection;
use zbus::zvariant::{OwnedObjectPath, OwnedValue, Type};

use super::{Parting, is_there};

/// How long the answer may take: four calls on this machine, which may be a busy one, and a restart that is taken for a stop ends what
/// it should leave. The node serves on meanwhile. A sixth of what its unit gives it to end (`TimeoutStopSec`).
const DEADLINE: Duration = Duration::from_secs(30);
const SYSTEMD: &str = "org.freedesktop.systemd1";

/// What a request to end means.
///
/// A restart leaves the applications serving, and so does a signal without a job: systemd starts us again. Everything else ends
/// them, also when nobody can be asked: an application that runs on after a stop is worse than one that pauses.
pub(crate) async fn asked_to_end() -> Parting {
    if !is_there() {
        return Parting::Stop;
    }
    let job = tokio::time::timeout(DEADLINE, job_type()).await.unwrap_or(Err(zbus::Error::InvalidReply));
    match &job {
        Ok(job) => tracing::info!(job = job.as_deref().unwrap_or("none"), "the service manager asks us to end"),
        Err(error) => {
            tracing::warn!(%error, "cannot ask systemd whether it stops or restarts us; taking it for a stop");
        }
    }
    parting(job.as_ref().map(Option::as_deref).unwrap_or(Some("stop")))
}

/// `restart` is the type of a restart's job while it stops the unit, and of the other verbs that come to the same (`try-restart`,
/// and `reload-or-restart` of a unit that cannot reload); from then on it is `start`.
fn parting(job: Option<&str>) -> Parting {
    match job {
        None | Some("restart" | "try-restart" | "start") => Parting::Leave,
        Some(_) => Parting::Stop,
    }
}

/// The type of the job that runs for the unit of this process; `None` when there is none.
async fn job_type() -> zbus::Result<Option<String>> {
    let bus = Connection::system().await?;
    let manager = Some("org.freedesktop.systemd1.Manager");
    let own = std::process::id();
    let unit = bus.call_method(Some(SYSTEMD), "/org/freedesktop/systemd1", manager, "GetUnitByPID", &own).await?;
    let unit: OwnedObjectPath = unit.body().deserialize()?;
    let (number, job): (u32, OwnedObjectPath) = property(&bus, &unit, "org.freedesktop.systemd1.Unit", "Job").await?;
    if number == 0 {
        return Ok(None);
    }
    property(&bus, &job, "org.freedesktop.systemd1.Job", "JobType").await.map(Some)
}

async fn property<T>(bus: &Connection, object: &OwnedObjectPath, interface: &str, name: &str) -> zbus::Result<T>
where
    T: TryFrom<OwnedValue, Error = zbus::zvariant::Error> + Type,
{
    let properties = Some("org.freedesktop.DBus.Properties");
    let answer = bus.call_method(Some(SYSTEMD), object, properties, "Get", &(interface, name)).await?;
    let value: OwnedValue = answer.body().deserialize()?;
    T::try_from(value).map_err(zbus::Error::Variant)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_restart_or_no_job_at_all_leaves_the_applications_serving() {
        for job in [None, Some("restart"), Some("try-restart"), Some("start")] {
            assert_eq!(parting(job), Parting::Leave, "{job:?}");
        }
        for job in [Some("stop"), Some("something-new")] {
            assert_eq!(parting(job), Parting::Stop, "{job:?}");
        }
    }
}
