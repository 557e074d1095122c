//! Whose each process is, where the node runs as root and has user ids to give away (`celld.uidRange`): one for each daemon, one for
//! each deploy job at a time, and one for each application, chosen once and never given to another. The first ids of the range
//! are the node's own; packages name them.

use std::collections::BTreeMap;
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use scafo_core::ApplicationName;

use super::files::{read_json, write_json};
use super::{Dirs, cannot_write};
use crate::api::Error;
use crate::daemon::Name;
use crate::sockets;
use crate::spawn::User;

/// Ids of daemons, then of groups of callers.
const CALLERS: u32 = 8;
/// Ids of deploy jobs.
const JOBS: RangeInclusive<u32> = 16..=31;
/// Ids of applications begin here.
const APPLICATIONS: u32 = 32;
/// A range with fewer ids is a mistake.
const FEWEST: u32 = 64;
/// Ids below are the system's and people's (`SYS_UID_MAX` of login.defs(5)).
const LOWEST: u32 = 1000;
/// `umask(2)` of who keeps everything to itself, and of who lets its group read: deploy jobs read what the apiserver unpacked.
const PRIVATE: u32 = 0o077;
const GROUP_READS: u32 = 0o027;

/// The ids of a node.
#[derive(Debug)]
pub(crate) struct Users {
    range: RangeInclusive<u32>,
    path: PathBuf,
    applications: Mutex<BTreeMap<ApplicationName, u32>>,
    jobs: Mutex<Vec<u32>>,
}

/// The id of a deploy job, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Lent<'a> {
    users: &'a Users,
    uid: u32,
}

impl Users {
    /// So many jobs can be users of their own at once.
    pub(crate) const MOST_JOBS: u32 = *JOBS.end() - *JOBS.start() + 1;

    /// `None` where everything runs as one user: no range is configured, or we are not root.
    pub(crate) fn open(dirs: &Dirs, range: Option<&RangeInclusive<u32>>) -> Result<Option<Self>, Error> {
        let Some(range) = range.filter(|_| rustix::process::geteuid().is_root()) else { return Ok(None) };
        Self::of(&dirs.state, range).map(Some)
    }

    pub(crate) fn of(state: &Path, range: &RangeInclusive<u32>) -> Result<Self, Error> {
        if *range.start() < LOWEST || range.end().saturating_sub(*range.start()) < FEWEST {
            return Err(Error::refused(
                format!("celld.uidRange is {}-{}, which cannot be used", range.start(), range.end()),
                format!("give it at least {FEWEST} ids, none below {LOWEST}, that no user of this machine has"),
            ));
        }
        let path = state.join("users.json");
        let applications = read_json(&path).map_err(|error| cannot_write(&path, &error))?.unwrap_or_default();
        let jobs = JOBS.map(|offset| range.start() + offset).collect();
        Ok(Self { range: range.clone(), path, applications: Mutex::new(applications), jobs: Mutex::new(jobs) })
    }

    /// A daemon's user. Its groups are the servers that it may call.
    pub(crate) fn daemon(&self, name: Name) -> User {
        let uid = self.range.start() + name as u32;
        let groups = sockets::SERVERS.iter().filter(|server| callers(server).contains(&name));
        let mask = if name == Name::Apiserver { GROUP_READS } else { PRIVATE };
        User { uid, gid: uid, groups: groups.filter_map(|server| self.callers(server)).collect(), mask }
    }

    /// The group of those that may call a server; `None`: root alone.
    pub(crate) fn callers(&self, server: &str) -> Option<u32> {
        let offset = match server {
            sockets::REGISTRY => 0,
            sockets::ROUTER => 1,
            sockets::SUPERVISOR => 2,
            sockets::BUCKETD => 3,
            sockets::INGRESSD => 4,
            _ => return None,
        };
        Some(self.range.start() + CALLERS + offset)
    }

    /// A user for one job, which may read what the apiserver staged.
    pub(crate) fn job(&self) -> io::Result<(User, Lent<'_>)> {
        let uid =
            self.free_jobs().pop().ok_or_else(|| io::Error::other("no user id is left for another deploy job"))?;
        let apiserver = self.daemon(Name::Apiserver).gid;
        Ok((User { uid, gid: uid, groups: vec![apiserver], mask: PRIVATE }, Lent { users: self, uid }))
    }

    /// An application's user: the one that it has, or a new one, written down before it is returned.
    pub(crate) fn application(&self, name: &ApplicationName) -> io::Result<User> {
        let mut book = self.book();
        let own = RangeInclusive::new(self.range.start() + APPLICATIONS, *self.range.end());
        let uid = match book.get(name) {
            // The range was changed: others may be using the old one.
            Some(uid) if own.contains(uid) => *uid,
            _ => {
                let highest = book.values().copied().filter(|uid| own.contains(uid)).max();
                let uid = highest.map_or(*own.start(), |uid| uid + 1);
                if !own.contains(&uid) {
                    return Err(io::Error::other("celld.uidRange has no id left for another application; widen it"));
                }
                let before = book.insert(name.clone(), uid);
                if let Err(error) = write_json(&self.path, &*book) {
                    match before {
                        Some(before) => book.insert(name.clone(), before),
                        None => book.remove(name),
                    };
                    return Err(error);
                }
                uid
            }
        };
        Ok(User { uid, gid: uid, groups: Vec::new(), mask: PRIVATE })
    }

    /// The id that an application has been given, out of this range or an earlier one.
    pub(crate) fn given(&self, name: &ApplicationName) -> Option<u32> {
        self.book().get(name).copied()
    }

    /// The ids of deploy jobs.
    pub(crate) fn jobs(&self) -> RangeInclusive<u32> {
        self.range.start() + JOBS.start()..=self.range.start() + JOBS.end()
    }

    /// The ids of everything that runs code of others: applications and deploy jobs.
    pub(crate) fn strangers(&self) -> RangeInclusive<u32> {
        self.range.start() + JOBS.start()..=*self.range.end()
    }

    fn book(&self) -> std::sync::MutexGuard<'_, BTreeMap<ApplicationName, u32>> {
        self.applications.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether an id is out of the range.
    pub(crate) fn has(&self, uid: u32) -> bool {
        self.range.contains(&uid)
    }

    fn free_jobs(&self) -> std::sync::MutexGuard<'_, Vec<u32>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        // Behind the others: what a job left running would have to live for long to meet the next one of its user.
        self.users.free_jobs().insert(0, self.uid);
    }
}

/// Who may call whom, beside root.
pub(crate) fn callers(server: &str) -> &'static [Name] {
    match server {
        sockets::REGISTRY => &[Name::Apiserver, Name::Routerd],
        sockets::ROUTER => &[Name::Apiserver],
        sockets::SUPERVISOR | sockets::BUCKETD | sockets::INGRESSD => &[Name::Registryd],
        // The node's own command line, or nobody.
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users(dir: &Path) -> Users {
        Users::of(dir, &(700_000..=700_099)).unwrap()
    }

    fn app(name: &str) -> ApplicationName {
        name.parse().unwrap()
    }

    #[test]
    fn an_applications_id_is_kept_and_never_given_to_another() {
        let dir = tempfile::tempdir().unwrap();
        let first = users(dir.path()).application(&app("shop")).unwrap();
        let second = users(dir.path()).application(&app("blog")).unwrap();
        assert_eq!((first.uid, second.uid), (700_032, 700_033));
        assert_eq!(users(dir.path()).application(&app("shop")).unwrap(), first);
        assert_eq!(users(dir.path()).given(&app("none")), None);
        let moved = Users::of(dir.path(), &(800_000..=800_099)).unwrap();
        assert_eq!(moved.given(&app("shop")), Some(700_032), "what runs has the old one still");
        assert_eq!(moved.application(&app("shop")).unwrap().uid, 800_032, "never an id outside of the range");
    }

    #[test]
    fn a_range_that_is_used_up_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let users = users(dir.path());
        for n in 0..68 {
            users.application(&app(&format!("app{n}"))).unwrap();
        }
        assert!(users.application(&app("one-more")).is_err());
        assert!(users.application(&app("app0")).is_ok());
    }

    #[test]
    fn a_range_of_the_systems_own_or_a_short_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        for range in [0..=70_000, 999..=2000, 700_000..=700_010] {
            assert_eq!(Users::of(dir.path(), &range).unwrap_err().exit_code, crate::EXIT_REFUSED, "{range:?}");
        }
    }

    #[test]
    fn every_daemon_is_somebody_else_and_belongs_to_the_callers_of_its_servers_only() {
        let dir = tempfile::tempdir().unwrap();
        let users = users(dir.path());
        let all = [Name::Bucketd, Name::Registryd, Name::Routerd, Name::Apiserver, Name::Ingressd];
        let uids: std::collections::BTreeSet<u32> = all.iter().map(|name| users.daemon(*name).uid).collect();
        assert_eq!(uids.len(), all.len());
        let [registry, router, supervisor, bucketd, ingressd] =
            [sockets::REGISTRY, sockets::ROUTER, sockets::SUPERVISOR, sockets::BUCKETD, sockets::INGRESSD]
                .map(|server| users.callers(server).unwrap());
        assert_eq!(users.daemon(Name::Apiserver).groups, [registry, router]);
        assert_eq!(users.daemon(Name::Routerd).groups, [registry]);
        assert_eq!(users.daemon(Name::Registryd).groups, [supervisor, bucketd, ingressd]);
        for name in [Name::Bucketd, Name::Ingressd] {
            assert_eq!(users.daemon(name).groups, Vec::<u32>::new());
        }
        assert_eq!((users.callers(sockets::ADMIN), users.callers(sockets::APISERVER)), (None, None));
    }

    #[test]
    fn two_jobs_at_once_are_two_users() {
        let dir = tempfile::tempdir().unwrap();
        let users = users(dir.path());
        let (first, lent) = users.job().unwrap();
        let (second, _second) = users.job().unwrap();
        assert_ne!(first.uid, second.uid);
        drop(lent);
        let (third, _third) = users.job().unwrap();
        assert!(third.uid != first.uid && users.strangers().contains(&third.uid));
    }
}
