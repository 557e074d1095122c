//! The table of keys. The file, the environment, the flags and the documentation are all read from it.

/// One key of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// As it is spelled in the file and in `--set`, for example `node.address`.
    pub name: &'static str,
    /// How its value is written.
    pub kind: Kind,
    /// What holds when nobody says otherwise, as one would write it; empty for "nothing".
    pub default: &'static str,
    /// What it is for.
    pub help: &'static str,
}

/// How a value is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Any text.
    Text,
    /// A directory or file.
    Path,
    /// `true` or `false`.
    Bool,
    /// A number.
    Count,
    /// Bytes: a number, or `64MiB`.
    Size,
    /// `500ms`, `10s`, `5m`, `2h`, `7d`.
    Duration,
    /// `FIRST-LAST`, both included.
    Range,
    /// Comma-separated; in the file an array.
    List,
    /// Comma-separated `K=V`; in the file a table.
    Map,
}

const fn key(name: &'static str, kind: Kind, default: &'static str, help: &'static str) -> Key {
    Key { name, kind, default, help }
}

/// Every key there is.
pub const KEYS: &[Key] = &[
    key(
        "node.id",
        Kind::Text,
        "",
        "This node's id; taken from the host name at first and fixed in the state directory",
    ),
    key(
        "node.address",
        Kind::Text,
        "",
        "Private IP address at which peers and ingresses reach this node; without it a second node is refused",
    ),
    key("node.labels", Kind::Map, "", "Labels that node selectors match"),
    key("node.heartbeat", Kind::Duration, "30s", "How often the node record is written; equal on all nodes"),
    key("node.liveness", Kind::Duration, "90s", "How long a silent node counts as live; equal on all nodes"),
    key("lease.ttl", Kind::Duration, "15s", "Life of the coordinator lease; equal on all nodes"),
    key("platform.domains", Kind::List, "", "Domains under which every application answers at <name>.<domain>"),
    key("stateDir", Kind::Path, "/var/lib/scafo", "Where this node keeps what must survive"),
    key(
        "runtimeDir",
        Kind::Path,
        "",
        "Where sockets are; /run/scafo, or `run` in a state directory that is not the default one",
    ),
    key("bucket.name", Kind::Text, "", "The S3 bucket; without one an embedded store is used, for a single node"),
    key("bucket.prefix", Kind::Text, "", "Put before every key in the bucket"),
    key("bucket.endpoint", Kind::Text, "", "Base URL of an S3-compatible store; none for AWS"),
    key("bucket.region", Kind::Text, "", "Region to sign for; AWS_REGION, then us-east-1"),
    key(
        "bucket.pathStyle",
        Kind::Bool,
        "",
        "Whether the bucket's name goes into the path; by default with an endpoint",
    ),
    key("api.listen", Kind::List, "", "Addresses of the API; loopback and node.address, port 7400"),
    key("api.public", Kind::Bool, "true", "Whether the bare platform domains route to the API"),
    key("api.jsonBytes", Kind::Size, "65536", "Longest JSON body"),
    key("ingress.token", Kind::List, "", "Tokens that ingresses present; minted when none is given"),
    key("ingress.entryPoints", Kind::List, "web", "Traefik entry points of rendered routers"),
    key(
        "ingress.tls.certResolver",
        Kind::Text,
        "",
        "Traefik certificate resolver of rendered routers, whose entry points then serve HTTPS; none by default",
    ),
    key(
        "ingress.tls.domains",
        Kind::List,
        "",
        "Wildcards, as *.apps.example.com, that the resolver gets one certificate for, in place of one for each host below",
    ),
    key("ingress.hold", Kind::Duration, "35s", "How long a leaving process lives on after it left the routes"),
    key("ingressd.listen", Kind::Text, "", "Address of our own ingress; without one it is not started"),
    key(
        "celld.path",
        Kind::Path,
        "",
        "The celld to run; otherwise the one on PATH. A script has to `exec` it: signals go to the process that is started. A deploy reads and starts nothing beside it but what is below /usr, /opt or a directory of PATH",
    ),
    key("celld.portRange", Kind::Range, "24000-31999", "Ports for applications, two for each"),
    key("celld.env", Kind::Map, "", "Further environment of every celld"),
    key("celld.uidRange", Kind::Range, "", "User ids for applications, when scafo runs as root"),
    key("deploy.artifactBytes", Kind::Size, "512MiB", "Largest artifact, packed and unpacked each"),
    key("deploy.archiveEntries", Kind::Count, "65536", "Most entries of one archive"),
    key("deploy.stagedBytes", Kind::Size, "4GiB", "Most bytes staged at once"),
    key("deploy.queue", Kind::Count, "16", "Most deploys that wait or run at once"),
    key("deploy.jobs", Kind::Count, "2", "Most deploy jobs that run at once"),
    key("deploy.receiveTimeout", Kind::Duration, "10m", "How long receiving an artifact may take"),
    key("deploy.queueTimeout", Kind::Duration, "5m", "How long a deploy may wait to be unpacked"),
    key("deploy.taskTimeout", Kind::Duration, "10m", "How long a deploy may take after that"),
    key("storage.valueBytes", Kind::Size, "16MiB", "Largest value of certificate storage"),
    key("reconcile.interval", Kind::Duration, "5s", "Time between two reconcile passes"),
    key("drain.timeout", Kind::Duration, "10m", "How long a drain waits for replacements"),
    key("log", Kind::Text, "", "What is logged: levels and targets, as info,scafo::access=info; read again on SIGHUP"),
    key(
        "observe.flush",
        Kind::Duration,
        "60s",
        "How often what the node measured and traced is written to the bucket; 0 for never, and then nothing is recorded",
    ),
    key("observe.retention", Kind::Duration, "7d", "How long observations are kept"),
    key(
        "observe.otlp",
        Kind::Text,
        "",
        "URL of the OTLP receiver (gRPC) that traces are sent to as well; none without one",
    ),
    key(
        "observe.metricsListen",
        Kind::Text,
        "",
        "Loopback address of the metrics (OpenMetrics at /metrics); off without one",
    ),
];

/// What every environment variable of the configuration starts with.
pub const ENVIRONMENT_PREFIX: &str = "SCAFO_";

impl Key {
    /// The key with this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        KEYS.iter().find(|key| key.name == name)
    }

    /// The environment variable: `SCAFO_` and the key in capitals, with `_` for each dot and before each inner capital.
    pub fn environment(&self) -> String {
        let mut spelled = ENVIRONMENT_PREFIX.to_owned();
        for c in self.name.chars() {
            match c {
                '.' => spelled.push('_'),
                c if c.is_ascii_uppercase() => {
                    spelled.push('_');
                    spelled.push(c);
                }
                c => spelled.push(c.to_ascii_uppercase()),
            }
        }
        spelled
    }

    /// The long flag without its dashes: the environment's name in small letters with hyphens, `node-address`.
    pub fn flag(&self) -> String {
        self.environment()[ENVIRONMENT_PREFIX.len()..].to_ascii_lowercase().replace('_', "-")
    }
}

/// The known spelling that is nearest to `unknown`, when one is near enough to be meant: at most a third of its letters
/// differ.
pub fn nearest<'a>(unknown: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known
        .map(|name| (distance(&unknown.to_ascii_lowercase(), &name.to_ascii_lowercase()), name))
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, name)| *distance <= name.len().div_ceil(3))
        .map(|(_, name)| name)
}

/// Levenshtein distance, for names of bounded length.
fn distance(left: &str, right: &str) -> usize {
    const LONGEST: usize = 64;
    let right: Vec<char> = right.chars().take(LONGEST).collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.chars().take(LONGEST).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in right.iter().enumerate() {
            let substituted = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_name_follows_from_the_key() {
        for (key, variable) in [
            ("node.address", "SCAFO_NODE_ADDRESS"),
            ("deploy.artifactBytes", "SCAFO_DEPLOY_ARTIFACT_BYTES"),
            ("ingress.token", "SCAFO_INGRESS_TOKEN"),
            ("platform.domains", "SCAFO_PLATFORM_DOMAINS"),
            ("stateDir", "SCAFO_STATE_DIR"),
            ("celld.portRange", "SCAFO_CELLD_PORT_RANGE"),
        ] {
            assert_eq!(Key::find(key).unwrap().environment(), variable);
        }
        assert_eq!(Key::find("ingress.entryPoints").unwrap().flag(), "ingress-entry-points");
    }

    #[test]
    fn no_two_keys_share_a_spelling() {
        let mut names: Vec<String> = KEYS.iter().map(Key::environment).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), KEYS.len());
    }

    #[test]
    fn the_nearest_name_is_the_one_that_was_meant() {
        let names = || KEYS.iter().map(|key| key.name);
        assert_eq!(nearest("node.adress", names()), Some("node.address"));
        assert_eq!(nearest("statedir", names()), Some("stateDir"));
        assert_eq!(nearest("bucket.region_", names()), Some("bucket.region"));
        assert_eq!(nearest("completely.else.here", names()), None);
    }
}
