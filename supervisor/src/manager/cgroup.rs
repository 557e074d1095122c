//! Control groups of our own (cgroups(7)), where no systemd makes them: version 2 where its controllers are given to us, version 1
//! where they are mounted one by one.

use std::io;
use std::path::{Path, PathBuf};

use scafo_core::ApplicationName;

use super::enclosure::Bounds;
use crate::spawn::proc;

/// Where the hierarchies are mounted.
const MOUNT: &str = "/sys/fs/cgroup";

/// Of the directory of a node, before the process id of its supervisor.
const PREFIX: &str = "scafo-";

/// What is bounded, by which file of which version.
struct Row {
    shown: &'static str,
    controller: &'static str,
    v1: &'static str,
    v2: &'static str,
    value: fn(Bounds) -> u64,
}

const ROWS: [Row; 3] = [
    Row { shown: "memory", controller: "memory", v1: "memory.limit_in_bytes", v2: "memory.max", value: |b| b.memory },
    // The default of both, said for whoever looks: all applications weigh the same.
    Row { shown: "CPU", controller: "cpu", v1: "", v2: "cpu.weight", value: |_| 100 },
    Row { shown: "tasks", controller: "pids", v1: "pids.max", v2: "pids.max", value: |b| b.tasks },
];

/// The directories of a node, one for each controller, or one for all.
#[derive(Debug)]
pub(crate) struct Cgroups {
    groups: Vec<Group>,
}

#[derive(Debug)]
struct Group {
    dir: PathBuf,
    /// Indices of [`ROWS`].
    rows: Vec<usize>,
    unified: bool,
}

impl Cgroups {
    /// What this machine lets us use; `None` when that is nothing.
    pub(crate) fn open() -> Option<Self> {
        let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        Self::below(Path::new(MOUNT), &own, std::process::id())
    }

    fn below(mount: &Path, own: &str, pid: u32) -> Option<Self> {
        let name = format!("{PREFIX}{pid}");
        let mut groups: Vec<Group> = own.lines().filter_map(|line| group(mount, line, &name)).collect();
        groups.retain(|group| match group.prepare() {
            Ok(()) => true,
            Err(error) => {
                tracing::debug!(dir = %group.dir.display(), %error, "this control group is not ours to use");
                false
            }
        });
        for group in &groups {
            group.sweep();
        }
        (!groups.is_empty()).then_some(Self { groups })
    }

    /// What is not bounded here.
    pub(crate) fn missing(&self) -> Vec<&'static str> {
        let bounded = |row: usize| self.groups.iter().any(|group| group.rows.contains(&row));
        ROWS.iter().enumerate().filter(|(row, _)| !bounded(*row)).map(|(_, row)| row.shown).collect()
    }

    /// Bounds an application and puts a process of it there.
    pub(crate) fn take(&self, application: &ApplicationName, pid: u32, bounds: Bounds) -> io::Result<()> {
        for group in &self.groups {
            let dir = group.dir.join(application.as_str());
            make(&dir)?;
            for row in group.rows.iter().map(|row| &ROWS[*row]) {
                let file = if group.unified { row.v2 } else { row.v1 };
                if !file.is_empty() {
                    std::fs::write(dir.join(file), (row.value)(bounds).to_string())?;
                }
            }
            std::fs::write(dir.join("cgroup.procs"), pid.to_string())?;
        }
        Ok(())
    }

    /// Removes what is empty, also of the nodes before this one, whose applications were adopted; one with a process that is still
    /// ending goes with the node, or stays for its next start.
    pub(crate) fn forget(&self, application: &ApplicationName) {
        for group in &self.groups {
            let _ = std::fs::remove_dir(group.dir.join(application.as_str()));
            group.sweep();
        }
    }

    /// Removes all of the node's directories. `false`: a process is still in one of them.
    pub(crate) fn clear(&self) -> bool {
        for group in &self.groups {
            remove_empty(&group.dir);
            group.sweep();
        }
        self.groups.iter().all(|group| !group.dir.exists())
    }
}

impl Group {
    /// Removes what nodes that were killed left beside us.
    fn sweep(&self) {
        let beside = self.dir.parent().and_then(|parent| std::fs::read_dir(parent).ok());
        for entry in beside.into_iter().flatten().flatten() {
            let pid = entry.file_name().to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse().ok());
            // A process may have the number of a dead node; then its directory goes another time.
            if entry.path() != self.dir && pid.is_some_and(|pid| proc::start_time(pid).is_none()) {
                remove_empty(&entry.path());
            }
        }
    }

    /// Makes the directory and, in version 2, has the controllers handed down to what is in it.
    fn prepare(&self) -> io::Result<()> {
        make(&self.dir)?;
        if self.unified {
            let wanted: Vec<String> = self.rows.iter().map(|row| format!("+{}", ROWS[*row].controller)).collect();
            for dir in [self.dir.parent(), Some(self.dir.as_path())].into_iter().flatten() {
                std::fs::write(dir.join("cgroup.subtree_control"), wanted.join(" "))?;
            }
        }
        Ok(())
    }
}

/// Removes a node's directory with those of its applications, as far as no process is in them: of others the kernel refuses that.
fn remove_empty(dir: &Path) {
    let inner = std::fs::read_dir(dir).into_iter().flatten().flatten();
    for application in inner.filter(|entry| entry.path().is_dir()) {
        let _ = std::fs::remove_dir(application.path());
    }
    let _ = std::fs::remove_dir(dir);
}

/// One line of `/proc/self/cgroup`: `0::/path`, or `5:memory:/path`.
fn group(mount: &Path, line: &str, name: &str) -> Option<Group> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, path) = (parts.next()?, parts.next()?.trim_start_matches('/'));
    let unified = controllers.is_empty();
    let parent = if unified { mount.join(path) } else { mount.join(controllers).join(path) };
    let offered = std::fs::read_to_string(parent.join("cgroup.controllers")).unwrap_or_default();
    let offers = |row: &Row| {
        if unified {
            offered.split_whitespace().any(|controller| controller == row.controller)
        } else {
            controllers.split(',').any(|controller| controller == row.controller)
        }
    };
    let rows: Vec<usize> = ROWS.iter().enumerate().filter(|(_, row)| offers(row)).map(|(row, _)| row).collect();
    (!rows.is_empty() && parent.is_dir()).then(|| Group { dir: parent.join(name), rows, unified })
}

fn make(dir: &Path) -> io::Result<()> {
    match std::fs::create_dir(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { memory: 1000, tasks: 7 };

    fn app() -> ApplicationName {
        "shop".parse().unwrap()
    }

    #[test]
    fn version_2_has_one_directory_with_every_controller_that_is_offered() {
        let dir = tempfile::tempdir().unwrap();
        let parent = dir.path().join("node");
        std::fs::create_dir(&parent).unwrap();
        std::fs::write(parent.join("cgroup.controllers"), "cpuset cpu memory hugetlb\n").unwrap();
        let groups = Cgroups::below(dir.path(), "0::/node\n", 9).unwrap();
        assert_eq!(groups.missing(), ["tasks"]);
        assert_eq!(std::fs::read_to_string(parent.join("cgroup.subtree_control")).unwrap(), "+memory +cpu");
        groups.take(&app(), 42, BOUNDS).unwrap();
        let read = |file: &str| std::fs::read_to_string(parent.join("scafo-9/shop").join(file)).unwrap();
        assert_eq!(
            (read("memory.max"), read("cpu.weight"), read("cgroup.procs")),
            ("1000".into(), "100".into(), "42".into())
        );
    }

    #[test]
    fn version_1_has_a_directory_for_each_controller() {
        let dir = tempfile::tempdir().unwrap();
        for controller in ["memory", "pids", "freezer"] {
            std::fs::create_dir(dir.path().join(controller)).unwrap();
        }
        let own = "3:pids:/\n2:freezer:/\n1:memory:/\n0::/\n";
        let groups = Cgroups::below(dir.path(), own, 9).unwrap();
        assert_eq!(groups.missing(), ["CPU"]);
        groups.take(&app(), 42, BOUNDS).unwrap();
        let read = |file: &str| std::fs::read_to_string(dir.path().join(file)).unwrap();
        assert_eq!(read("pids/scafo-9/shop/pids.max"), "7");
        assert_eq!(read("memory/scafo-9/shop/memory.limit_in_bytes"), "1000");
        assert!(!dir.path().join("freezer/scafo-9").exists());
    }

    #[test]
    fn what_a_killed_node_left_empty_goes_at_the_next_start_and_when_its_last_application_ends() {
        let dir = tempfile::tempdir().unwrap();
        let parent = dir.path().join("node");
        // Beyond the largest number of a process (PID_MAX_LIMIT).
        let (empty, adopted, running) = (
            parent.join("scafo-4194305"),
            parent.join("scafo-4194306/shop"),
            parent.join(format!("scafo-{}", std::process::id())),
        );
        for made in [&empty, &adopted, &running] {
            std::fs::create_dir_all(made).unwrap();
        }
        std::fs::write(parent.join("cgroup.controllers"), "memory\n").unwrap();
        // Stands for a process in it: what is not empty cannot be removed.
        std::fs::write(adopted.join("process"), "").unwrap();
        let groups = Cgroups::below(dir.path(), "0::/node\n", 9).unwrap();
        assert!(!empty.exists() && adopted.exists() && running.exists());
        std::fs::remove_file(adopted.join("process")).unwrap();
        groups.forget(&app());
        assert!(!parent.join("scafo-4194306").exists() && running.exists());
        // Here it is a plain file; the kernel's own are no obstacle.
        std::fs::remove_file(parent.join("scafo-9/cgroup.subtree_control")).unwrap();
        assert!(groups.clear() && !parent.join("scafo-9").exists());
    }

    #[test]
    fn nothing_is_offered_where_nothing_is_mounted() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Cgroups::below(dir.path(), "0::/\n5:memory:/x\n", 9).is_none());
    }
}
