//! How a celld is started: as a node, and for one deploy.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use scafo_core::settings::BucketAccess;
use scafo_core::{ApplicationName, NodeId, key};

use super::environment::{Given, Role, build};
use super::version::Version;
use crate::api::DevOptions;
use crate::manager::Enclosure;
use crate::spawn::User;
use crate::state::{Dirs, Pair, Users, give, give_within, private_dir};

/// What every celld of this node is started with.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) node: NodeId,
    pub(crate) dirs: Dirs,
    pub(crate) bucket: BucketAccess,
    pub(crate) embedded: bool,
    pub(crate) address: IpAddr,
    pub(crate) tools: DevOptions,
    pub(crate) path: Option<String>,
    pub(crate) extra: BTreeMap<String, String>,
    /// Where each application is a user of its own.
    pub(crate) users: Option<Arc<Users>>,
    /// What bounds each application from outside.
    pub(crate) enclosure: Enclosure,
}

/// Directories of one application's process.
#[derive(Debug)]
pub(super) struct Own {
    pub(super) watch: PathBuf,
    pub(super) assets: PathBuf,
    pub(super) temp: PathBuf,
}

impl Launch {
    pub(super) fn own(&self, application: &ApplicationName) -> Own {
        let root = self.dirs.application(application.as_str());
        Own { watch: self.dirs.watch(application.as_str()), assets: root.join("assets"), temp: root.join("tmp") }
    }

    /// Makes those that are not there, and the user their owner. Each is given away, not only the one above: that is the user's already
    /// when one below it was removed.
    pub(super) fn make_own(&self, application: &ApplicationName, user: Option<&User>) -> io::Result<()> {
        let Own { watch, assets, temp } = self.own(application);
        let all = [&watch, &assets, &temp];
        all.into_iter().try_for_each(|dir| private_dir(dir))?;
        let Some(user) = user else { return Ok(()) };
        give(&self.dirs.application(application.as_str()), user.uid, user.gid, 0o700)?;
        all.into_iter().try_for_each(|dir| give_within(dir, user.uid, user.gid))
    }

    /// The application whose data directory this is, if it is one of ours.
    pub(super) fn application_of(&self, watch: &Path) -> Option<ApplicationName> {
        self.dirs.application_of(watch)
    }

    /// Who the application's process is: the user that it has been given, or ours.
    pub(super) fn owner_of(&self, application: &ApplicationName) -> u32 {
        let given = self.users.as_ref().and_then(|users| users.given(application));
        given.unwrap_or_else(|| rustix::process::getuid().as_raw())
    }

    /// Arguments of the node process. All three addresses are always given, so that a second node of the fleet changes values
    /// and not the shape.
    pub(super) fn node_arguments(&self, application: &ApplicationName, ports: Pair) -> Vec<OsString> {
        let public = SocketAddr::new(self.address, ports.public).to_string();
        let internal = SocketAddr::new(self.address, ports.internal).to_string();
        let mut arguments = Vec::new();
        for (option, value) in [("--listen", &public), ("--internal-listen", &internal), ("--advertise", &internal)] {
            arguments.extend([OsString::from(option), OsString::from(value)]);
        }
        arguments.extend(self.bucket_arguments(application));
        arguments
    }

    /// Arguments of one deploy.
    pub(crate) fn deploy_arguments(&self, application: &ApplicationName, config: &Path) -> Vec<OsString> {
        let mut arguments = vec![OsString::from("deploy"), config.into()];
        arguments.extend(self.bucket_arguments(application));
        arguments.push("--json".into());
        arguments
    }

    fn bucket_arguments(&self, application: &ApplicationName) -> Vec<OsString> {
        let prefix = if self.bucket.prefix.is_empty() { String::new() } else { format!("{}/", self.bucket.prefix) };
        let location = format!("s3://{}/{prefix}{}", self.bucket.name, key::fleet(application));
        let mut arguments = vec!["--bucket".into(), location.into()];
        if let Some(endpoint) = &self.bucket.endpoint {
            arguments.extend(["--endpoint".into(), OsString::from(endpoint)]);
        }
        arguments.extend(["--region".into(), OsString::from(&self.bucket.region)]);
        arguments
    }

    pub(super) fn node_environment(
        &self,
        application: &ApplicationName,
        version: &Version,
        memory_mib: u64,
    ) -> BTreeMap<String, String> {
        let own = self.own(application);
        build(Role::Node, version, &Given { memory_mib, ..self.given(own) }, &self.extra)
    }

    /// The environment of one deploy, whose temporary directory is private to it.
    pub(crate) fn deploy_environment(&self, version: &Version, temp: &Path) -> BTreeMap<String, String> {
        let own = Own { watch: PathBuf::new(), assets: PathBuf::new(), temp: temp.to_owned() };
        build(Role::Deploy, version, &self.given(own), &self.extra)
    }

    /// Where a deploy finds programs: what it is given by path, and the directories of its `PATH`.
    pub(crate) fn tools(&self, program: &Path) -> Vec<PathBuf> {
        let named = [Some(program), self.tools.esbuild.as_deref(), self.tools.workerd.as_deref()].into_iter().flatten();
        // A link may lead elsewhere.
        let real = named.map(|path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()));
        real.chain(self.path.iter().flat_map(std::env::split_paths).filter(|dir| dir.is_absolute())).collect()
    }

    /// The port of the bucket.
    pub(crate) fn bucket_port(&self) -> u16 {
        let endpoint = self.bucket.endpoint.as_deref().and_then(|endpoint| endpoint.parse::<http::Uri>().ok());
        let plain = endpoint.as_ref().is_some_and(|endpoint| endpoint.scheme_str() == Some("http"));
        endpoint.and_then(|endpoint| endpoint.port_u16()).unwrap_or(if plain { 80 } else { 443 })
    }

    fn given(&self, own: Own) -> Given<'_> {
        Given {
            node: self.node.as_str(),
            bucket: &self.bucket,
            embedded: self.embedded,
            watch: own.watch,
            asset_cache: own.assets,
            temp: own.temp,
            tools: &self.tools,
            path: self.path.as_deref(),
            memory_mib: 0,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use scafo_core::settings::Secret;
    use std::os::unix::fs::MetadataExt as _;

    pub(in crate::celld) fn launch(prefix: &str, endpoint: Option<&str>) -> Launch {
        Launch {
            node: "vps-a".parse().unwrap(),
            dirs: Dirs { state: "/s".into(), runtime: "/r".into() },
            bucket: BucketAccess {
                name: "fleet".to_owned(),
                prefix: prefix.to_owned(),
                endpoint: endpoint.map(str::to_owned),
                region: "eu".to_owned(),
                path_style: false,
                access_key_id: "id".to_owned(),
                secret_access_key: Secret::new("never shown"),
                session_token: None,
            },
            embedded: false,
            address: "10.0.0.7".parse().unwrap(),
            tools: DevOptions::default(),
            path: None,
            extra: BTreeMap::new(),
            users: None,
            enclosure: Enclosure::None,
        }
    }

    fn spelled(arguments: &[OsString]) -> String {
        arguments.iter().map(|a| a.to_str().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_node_always_names_its_three_addresses_and_its_own_prefix() {
        let ports = Pair { public: 24_000, internal: 24_001 };
        let arguments = launch("a/b", None).node_arguments(&"shop".parse().unwrap(), ports);
        assert_eq!(
            spelled(&arguments),
            "--listen 10.0.0.7:24000 --internal-listen 10.0.0.7:24001 --advertise 10.0.0.7:24001 \
             --bucket s3://fleet/a/b/fleets/shop --region eu"
        );
    }

    #[test]
    fn the_port_of_the_bucket_is_that_of_its_endpoint_or_of_its_scheme() {
        for (endpoint, port) in [
            (None, 443),
            (Some("https://s3.example.com"), 443),
            (Some("http://store"), 80),
            (Some("http://127.0.0.1:9"), 9),
            (Some("https://[::1]:8443/x"), 8443),
        ] {
            assert_eq!(launch("", endpoint).bucket_port(), port, "{endpoint:?}");
        }
    }

    #[test]
    fn a_deploy_names_the_configuration_and_asks_for_json() {
        let launch = launch("", Some("http://127.0.0.1:9"));
        let arguments = launch.deploy_arguments(&"shop".parse().unwrap(), Path::new("/stage/wrangler.jsonc"));
        assert_eq!(
            spelled(&arguments),
            "deploy /stage/wrangler.jsonc --bucket s3://fleet/fleets/shop --endpoint http://127.0.0.1:9 --region eu --json"
        );
    }

    #[test]
    fn only_a_data_directory_of_this_node_names_an_application() {
        let launch = launch("", None);
        let own = launch.own(&"shop".parse().unwrap()).watch;
        assert_eq!(launch.application_of(&own).unwrap().as_str(), "shop");
        for other in ["/other/celld/shop/watch", "/s/celld/shop/tmp", "/s/celld/Not A Name/watch", "/"] {
            assert_eq!(launch.application_of(Path::new(other)), None);
        }
    }

    #[test]
    fn a_directory_that_was_removed_is_made_again_for_the_applications_user() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: only root gives files away");
            return;
        }
        let state = tempfile::tempdir().unwrap();
        let dirs = Dirs { state: state.path().to_owned(), runtime: "/r".into() };
        let launch = Launch { dirs, ..launch("", None) };
        let application = "shop".parse().unwrap();
        let user = User { uid: 7007, gid: 7008, groups: Vec::new(), mask: 0o077 };
        launch.make_own(&application, Some(&user)).unwrap();
        let Own { watch, assets, temp } = launch.own(&application);
        for removed in [&watch, &assets, &temp] {
            std::fs::remove_dir(removed).unwrap();
            launch.make_own(&application, Some(&user)).unwrap();
            for dir in [&watch, &assets, &temp] {
                let metadata = std::fs::metadata(dir).unwrap();
                assert_eq!((metadata.uid(), metadata.gid(), metadata.mode() & 0o777), (7007, 7008, 0o700), "{dir:?}");
            }
        }
    }

    #[test]
    fn no_secret_is_in_the_arguments() {
        let launch = launch("", None);
        let ports = Pair { public: 1, internal: 2 };
        let app = "shop".parse().unwrap();
        for arguments in [launch.node_arguments(&app, ports), launch.deploy_arguments(&app, Path::new("x"))] {
            assert!(!spelled(&arguments).contains("never shown"));
        }
        assert!(!format!("{launch:?}").contains("never shown"));
    }
}
