//! Applications that run as users beside `celld.uidRange`: what was taken over keeps the user that it was started as when the setting
//! changes. The fence between applications wants to know of them.

use std::collections::BTreeMap;

use scafo_core::ApplicationName;
use tokio::sync::watch;

use crate::state::Users;

/// Them with their users.
pub(crate) type Strays = BTreeMap<ApplicationName, u32>;

/// Those that run now.
#[derive(Debug, Default)]
pub(super) struct Noted(watch::Sender<Strays>);

impl Noted {
    /// Notes whose process was taken over. One that is ours is no stray: it is from before there were users, and nothing that is ours can
    /// be fenced off.
    pub(super) fn note(&self, users: &Users, application: &ApplicationName, uid: u32, ours: u32) {
        if uid != ours && !users.has(uid) {
            self.0.send_modify(|strays| {
                strays.insert(application.clone(), uid);
            });
        }
    }

    /// Its process has ended.
    pub(super) fn forget(&self, application: &ApplicationName) {
        self.0.send_if_modified(|strays| strays.remove(application).is_some());
    }

    pub(super) fn watch(&self) -> watch::Receiver<Strays> {
        self.0.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_runs_as_a_user_of_another_range_is_a_stray_and_for_as_long_as_it_runs() {
        let dir = tempfile::tempdir().unwrap();
        let users = Users::of(dir.path(), &(700_000..=700_099)).unwrap();
        let noted = Noted::default();
        let mut watched = noted.watch();
        // A daemon's, an application's, ours.
        for (application, uid) in [("daemons", 700_001), ("inside", 700_032), ("ours", 0)] {
            noted.note(&users, &application.parse().unwrap(), uid, 0);
        }
        assert!(!watched.has_changed().unwrap());
        let shop = "shop".parse().unwrap();
        noted.note(&users, &shop, 800_032, 0);
        assert_eq!(*watched.borrow_and_update(), Strays::from([(shop.clone(), 800_032)]));
        noted.forget(&"inside".parse().unwrap());
        assert!(!watched.has_changed().unwrap());
        noted.forget(&shop);
        assert!(watched.borrow_and_update().is_empty());
    }
}
