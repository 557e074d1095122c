//! The environment of a celld, built from nothing by one table: what is not in it does not reach the process. Newer releases
//! refuse variables that older ones knew, so each row says from which release on, and until which, it may be given.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use scafo_core::settings::BucketAccess;

use super::version::Version;
use crate::api::DevOptions;

/// What the values come from.
#[derive(Debug)]
pub(super) struct Given<'a> {
    pub(super) node: &'a str,
    pub(super) bucket: &'a BucketAccess,
    /// Whether the bucket is our own.
    pub(super) embedded: bool,
    /// Paths that belong to this process alone.
    pub(super) watch: PathBuf,
    pub(super) asset_cache: PathBuf,
    pub(super) temp: PathBuf,
    pub(super) tools: &'a DevOptions,
    /// Our own `PATH`.
    pub(super) path: Option<&'a str>,
    pub(super) memory_mib: u64,
}

/// Who gets a variable.
#[derive(Clone, Copy, PartialEq, Eq)]
enum For {
    /// The node process.
    Node,
    /// `celld deploy`.
    Deploy,
    /// Both.
    Both,
}

/// Which celld gets it.
#[derive(Clone, Copy)]
enum Which {
    /// Every release that is admitted.
    Any,
    /// Releases from this one on.
    Since(u64, u64),
    /// The development stand-in.
    Standin,
}

type Value = fn(&Given<'_>) -> Option<String>;

/// Which process of a celld an environment is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Node,
    Deploy,
}

const TABLE: &[(&str, For, Which, Value)] = &[
    ("AWS_ACCESS_KEY_ID", For::Both, Which::Any, |g| Some(g.bucket.access_key_id.clone())),
    ("AWS_SECRET_ACCESS_KEY", For::Both, Which::Any, |g| Some(g.bucket.secret_access_key.expose().to_owned())),
    ("AWS_SESSION_TOKEN", For::Both, Which::Any, |g| {
        g.bucket.session_token.as_ref().map(|token| token.expose().to_owned())
    }),
    ("CELLD_NODE", For::Node, Which::Any, |g| Some(g.node.to_owned())),
    ("CELLD_WATCH", For::Node, Which::Any, |g| Some(text(&g.watch))),
    ("CELLD_ASSET_CACHE_DIR", For::Node, Which::Any, |g| Some(text(&g.asset_cache))),
    ("TMPDIR", For::Both, Which::Any, |g| Some(text(&g.temp))),
    // An acknowledged write is in the bucket: the loss of this node's disk loses nothing.
    ("CELLD_DURABILITY", For::Node, Which::Any, |_| Some("bucket".to_owned())),
    // Its own default is most of the machine for each process.
    ("CELLD_MAX_RSS_MB", For::Node, Which::Any, |g| Some(g.memory_mib.to_string())),
    // Many processes share the cores; two threads keep one busy request from stopping all others of its application.
    ("CELLD_TOKIO_THREADS", For::Node, Which::Any, |_| Some("2".to_owned())),
    ("CELLD_MAX_STATELESS_ISOLATES", For::Node, Which::Any, |_| Some("2".to_owned())),
    // Idle applications give their memory back after five minutes.
    ("CELLD_IDLE_EVICT_S", For::Node, Which::Any, |_| Some("300".to_owned())),
    // A quarter of its own default, since there are many of them on one disk.
    ("CELLD_LOCAL_CACHE_MAX_BYTES", For::Node, Which::Any, |_| Some((512_u64 << 20).to_string())),
    // Every node is told of a deploy by /reload; this is the net below that.
    ("CELLD_DEPLOY_POLL_S", For::Node, Which::Since(0, 4), |_| Some("30".to_owned())),
    ("RUST_LOG", For::Both, Which::Any, |_| Some("info".to_owned())),
    ("HOME", For::Deploy, Which::Any, |g| Some(text(&g.temp))),
    ("CELLD_ESBUILD", For::Deploy, Which::Any, |g| g.tools.esbuild.as_deref().map(text)),
    // Finds esbuild where it was not given by path.
    ("PATH", For::Deploy, Which::Any, |g| g.path.map(str::to_owned)),
    ("PATH", For::Node, Which::Standin, |g| g.path.map(str::to_owned)),
    ("CELLD_STANDIN_WORKERD", For::Both, Which::Standin, |g| g.tools.workerd.as_deref().map(text)),
    ("CELLD_STANDIN_EMBEDDED", For::Both, Which::Standin, |g| g.embedded.then(|| "1".to_owned())),
];

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// The environment of one process. `extra` (`celld.env`) comes last and wins.
pub(super) fn build(
    role: Role,
    version: &Version,
    given: &Given<'_>,
    extra: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let mut environment = BTreeMap::new();
    for (name, whose, which, value) in TABLE {
        let role_fits = match whose {
            For::Node => role == Role::Node,
            For::Deploy => role == Role::Deploy,
            For::Both => true,
        };
        let version_fits = match which {
            Which::Any => true,
            Which::Since(major, minor) => version.at_least(*major, *minor),
            Which::Standin => version.is_standin(),
        };
        if role_fits
            && version_fits
            && let Some(value) = value(given)
        {
            environment.insert((*name).to_owned(), value);
        }
    }
    environment.extend(extra.iter().map(|(name, value)| (name.clone(), value.clone())));
    environment
}

#[cfg(test)]
mod tests {
    use super::*;
    use scafo_core::settings::Secret;

    fn bucket() -> BucketAccess {
        BucketAccess {
            name: "fleet".to_owned(),
            prefix: String::new(),
            endpoint: None,
            region: "eu".to_owned(),
            path_style: false,
            access_key_id: "id".to_owned(),
            secret_access_key: Secret::new("secret"),
            session_token: None,
        }
    }

    fn built(role: Role, version: &str, extra: &[(&str, &str)]) -> BTreeMap<String, String> {
        let (bucket, tools) =
            (bucket(), DevOptions { workerd: Some("/t/workerd".into()), esbuild: Some("/t/esbuild".into()) });
        let given = Given {
            node: "vps-a",
            bucket: &bucket,
            embedded: true,
            watch: "/s/watch".into(),
            asset_cache: "/s/assets".into(),
            temp: "/s/tmp".into(),
            tools: &tools,
            path: Some("/usr/bin"),
            memory_mib: 512,
        };
        let extra = extra.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        build(role, &Version::of_output(version).unwrap(), &given, &extra)
    }

    #[test]
    fn a_celld_gets_the_table_and_nothing_else() {
        let names: Vec<String> = built(Role::Node, "celld 0.6.0", &[]).into_keys().collect();
        assert_eq!(
            names,
            [
                "AWS_ACCESS_KEY_ID",
                "AWS_SECRET_ACCESS_KEY",
                "CELLD_ASSET_CACHE_DIR",
                "CELLD_DEPLOY_POLL_S",
                "CELLD_DURABILITY",
                "CELLD_IDLE_EVICT_S",
                "CELLD_LOCAL_CACHE_MAX_BYTES",
                "CELLD_MAX_RSS_MB",
                "CELLD_MAX_STATELESS_ISOLATES",
                "CELLD_NODE",
                "CELLD_TOKIO_THREADS",
                "CELLD_WATCH",
                "RUST_LOG",
                "TMPDIR"
            ]
        );
    }

    #[test]
    fn a_deploy_gets_credentials_and_tools_and_no_data_directory() {
        let names: Vec<String> = built(Role::Deploy, "celld 0.6.0", &[]).into_keys().collect();
        assert_eq!(
            names,
            ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "CELLD_ESBUILD", "HOME", "PATH", "RUST_LOG", "TMPDIR"]
        );
    }

    #[test]
    fn only_the_standin_hears_of_workerd_and_of_the_embedded_bucket() {
        let standin = built(Role::Node, "celld-workerd 0.1.0", &[]);
        assert_eq!(standin["CELLD_STANDIN_WORKERD"], "/t/workerd");
        assert_eq!(standin["CELLD_STANDIN_EMBEDDED"], "1");
        assert!(!built(Role::Node, "celld 0.6.0", &[]).keys().any(|name| name.contains("STANDIN")));
    }

    #[test]
    fn configured_variables_win() {
        let environment = built(Role::Node, "celld 0.6.0", &[("CELLD_DURABILITY", "fleet"), ("X", "1")]);
        assert_eq!((environment["CELLD_DURABILITY"].as_str(), environment["X"].as_str()), ("fleet", "1"));
    }

    #[test]
    fn nothing_that_newer_releases_refuse_is_in_the_table() {
        let refused =
            ["CELLD_VAR", "CELLD_SHUTDOWN_DRAIN", "CELLD_OUTPUT_GATE", "CELLD_STORAGE_PROBE", "CELLD_EVICTIONS"];
        for (name, ..) in TABLE {
            assert!(!refused.iter().any(|start| name.starts_with(start)), "{name}");
        }
    }
}
