//! Groups of system calls that a process of ours has no use for. They fail with `EPERM`; those that a library tries before an older
//! one fail with `ENOSYS`, so that it takes the older one.

use std::collections::BTreeMap;

use nix::libc;
use seccompiler::{
    BpfProgram, Error, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};

use super::{Allowed, Children, Families};

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Looking into other processes, and taking their descriptors.
const OTHERS: &[i64] = &[
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    libc::SYS_perf_event_open,
];
/// Another view of the file system, or of the machine.
const MOUNTS: &[i64] = &[
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    libc::SYS_fanotify_init,
];
/// The machine as a whole: modules, clock, names, quotas, the kernel's log.
const MACHINE: &[i64] = &[
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_syslog,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_vhangup,
    libc::SYS_personality,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
];
/// Large parts of the kernel that other processes' bugs are found in; the last three go around a filter of system calls.
const KERNEL: &[i64] = &[
    libc::SYS_bpf,
    libc::SYS_userfaultfd,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
];
/// Calls that make a process.
const FORKS: &[i64] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_fork,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_vfork,
];
/// Namespaces in the flags of `clone(2)`.
const NAMESPACES: &[libc::c_int] = &[
    libc::CLONE_NEWNS,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWCGROUP,
];

/// Whether the numbers of system calls are known for this machine.
pub(super) fn known_here() -> bool {
    TargetArch::try_from(std::env::consts::ARCH).is_ok()
}

/// The filters of one process. The kernel takes the strictest answer of all of them.
pub(super) fn filters(allowed: &Allowed) -> Result<Vec<BpfProgram>, Error> {
    let mut rules: Rules =
        [OTHERS, MOUNTS, MACHINE, KERNEL].concat().into_iter().map(|call| (call, Vec::new())).collect();
    rules.insert(libc::SYS_socket, vec![other_families(allowed.families)?]);
    rules.insert(libc::SYS_clone, clones(allowed.children)?);
    if allowed.children == Children::None {
        rules.extend(FORKS.iter().map(|call| (*call, Vec::new())));
    }
    // Its flags are behind a pointer, where a filter cannot look; everybody has `clone` to fall back to.
    let newer = Rules::from([(libc::SYS_clone3, Vec::new())]);
    let mut filters = vec![filter(rules, libc::EPERM)?, filter(newer, libc::ENOSYS)?];
    if allowed.children == Children::Some {
        // They are told that it worked, and are still where they are killed with the others.
        let leaving = [libc::SYS_setsid, libc::SYS_setpgid].map(|call| (call, Vec::new()));
        filters.push(filter(leaving.into(), 0)?);
    }
    Ok(filters)
}

fn filter(rules: Rules, errno: libc::c_int) -> Result<BpfProgram, Error> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    let errno = SeccompAction::Errno(errno.unsigned_abs());
    Ok(SeccompFilter::new(rules, SeccompAction::Allow, errno, arch)?.try_into()?)
}

/// Matches a socket of any other family.
fn other_families(families: Families) -> Result<SeccompRule, Error> {
    let internet = [libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];
    let allowed: Vec<libc::c_int> = match families {
        Families::Unix => vec![libc::AF_UNIX],
        Families::Internet => internet.to_vec(),
        Families::Both => internet.into_iter().chain([libc::AF_UNIX]).collect(),
    };
    let differs = |family: &libc::c_int| condition(SeccompCmpOp::Ne, family.unsigned_abs().into());
    Ok(SeccompRule::new(allowed.iter().map(differs).collect::<Result<_, _>>()?)?)
}

/// Matches a `clone` that makes more than a thread, or than a process in our namespaces.
fn clones(children: Children) -> Result<Vec<SeccompRule>, Error> {
    let flag = |flag: libc::c_int, value: u64| {
        let mask = u64::from(flag.unsigned_abs());
        Ok(SeccompRule::new(vec![condition(SeccompCmpOp::MaskedEq(mask), value * mask)?])?)
    };
    match children {
        Children::None => Ok(vec![flag(libc::CLONE_THREAD, 0)?]),
        Children::Some => NAMESPACES.iter().map(|namespace| flag(*namespace, 1)).collect(),
    }
}

fn condition(operation: SeccompCmpOp, value: u64) -> Result<SeccompCondition, Error> {
    // Both arguments that are looked at here are integers of 32 bits, and the first one.
    Ok(SeccompCondition::new(0, SeccompCmpArgLen::Dword, operation, value)?)
}
