use super::*;
use crate::config::{Error, File, KEYS, Origin};

type Pairs<'a> = &'a [(&'a str, &'a str)];

fn map(pairs: Pairs<'_>) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn with(flags: Pairs<'_>, environment: Pairs<'_>, file: &str) -> Result<Config, Error> {
    let (flags, environment, defaults) = (map(flags), map(environment), BTreeMap::new());
    let file = Some(File { path: "scafo.toml", text: file });
    Config::resolve(&Layers { flags: &flags, environment: &environment, file, defaults: &defaults })
}

fn refusal(flags: Pairs<'_>, environment: Pairs<'_>, file: &str) -> String {
    with(flags, environment, file).unwrap_err().to_string()
}

#[test]
fn nothing_said_gives_the_defaults_of_the_table() {
    let config = with(&[], &[], "").unwrap();
    assert_eq!(config.state_dir, PathBuf::from("/var/lib/scafo"));
    assert_eq!(config.runtime_dir, PathBuf::from("/run/scafo"));
    assert_eq!(config.api.listen, ["127.0.0.1:7400".parse().unwrap()]);
    assert_eq!(config.api.json_bytes, 65_536);
    assert_eq!(config.lease_ttl, Duration::from_secs(15));
    assert_eq!(config.celld.port_range, 24_000..=31_999);
    assert_eq!(config.deploy.artifact_bytes, 512 << 20);
    assert_eq!(config.deploy.queue, 16);
    assert_eq!(config.ingress.entry_points, ["web"]);
    assert!(config.bucket.is_none() && config.ingress.tokens.is_empty() && config.ingressd_listen.is_none());
    assert!(config.api.public && config.node.id.is_none());
}

#[test]
fn a_certificate_resolver_may_have_wildcards_and_wildcards_need_one() {
    let tls = |resolver, domains| {
        with(&[("ingress.tls.certResolver", resolver), ("ingress.tls.domains", domains)], &[], "")
            .map(|config| config.ingress.tls.map(|tls| (tls.cert_resolver, tls.wildcard_bases)))
    };
    assert_eq!(tls("", ""), Ok(None));
    assert_eq!(tls("le", ""), Ok(Some(("le".to_owned(), vec![]))));
    let bases = ["a.test", "b.test"].map(|base| base.parse().unwrap());
    assert_eq!(tls("le", "*.b.test,*.a.test,*.B.test"), Ok(Some(("le".to_owned(), bases.into()))));
    assert!(tls("", "*.a.test").unwrap_err().to_string().contains("certResolver"));
    for wrong in ["a.test", "*.", "*.*.test", "*a.test", "*.a.test:1"] {
        assert!(tls("le", wrong).unwrap_err().to_string().contains("ingress.tls.domains"), "{wrong}");
    }
    let file = with(&[], &[], "[ingress.tls]\ncertResolver = \"le\"\ndomains = [\"*.a.test\"]\n").unwrap();
    assert_eq!(file.ingress.tls.unwrap().cert_resolver, "le");
    assert!(with(&[], &[("SCAFO_INGRESS_TLS_CERT_RESOLVER", "le")], "").unwrap().ingress.tls.is_some());
}

#[test]
fn a_flag_wins_over_the_environment_and_that_over_the_file() {
    let file = "[lease]\nttl = \"1s\"\n[node]\nheartbeat = \"1s\"\n[reconcile]\ninterval = \"1s\"\n";
    let environment = [("SCAFO_LEASE_TTL", "2s"), ("SCAFO_RECONCILE_INTERVAL", "2s")];
    let config = with(&[("lease.ttl", "3s")], &environment, file).unwrap();
    assert_eq!(config.lease_ttl, Duration::from_secs(3));
    assert_eq!(config.reconcile_interval, Duration::from_secs(2));
    assert_eq!(config.node.heartbeat, Duration::from_secs(1));
}

#[test]
fn a_programs_own_defaults_are_below_the_file() {
    let defaults = map(&[("platform.domains", "dev.localhost"), ("stateDir", "here/.scafo")]);
    let (flags, environment) = (BTreeMap::new(), BTreeMap::new());
    let file = Some(File { path: "x", text: "platform.domains = [\"a.example\"]" });
    let config =
        Config::resolve(&Layers { flags: &flags, environment: &environment, file, defaults: &defaults }).unwrap();
    assert_eq!(config.platform_domains[0].as_str(), "a.example");
    assert_eq!(config.state_dir, PathBuf::from("here/.scafo"));
    assert_eq!(config.runtime_dir, PathBuf::from("here/.scafo/run"));
}

#[test]
fn an_unknown_key_is_refused_by_name_with_the_nearest_one() {
    let in_file = refusal(&[], &[], "[node]\nadress = \"10.0.0.1\"\n");
    assert!(in_file.contains("node.adress") && in_file.contains("`node.address`"), "{in_file}");
    let in_environment = refusal(&[], &[("SCAFO_BUCKET_ENDPIONT", "x")], "");
    assert!(in_environment.contains("SCAFO_BUCKET_ENDPOINT"), "{in_environment}");
    let flag = refusal(&[("lease.tll", "1s")], &[], "");
    assert!(flag.contains("`lease.ttl`"), "{flag}");
    assert!(refusal(&[], &[], "[nodes]\nid = \"a\"\n").contains("`nodes`"));
}

#[test]
fn variables_of_the_command_line_are_not_settings() {
    assert!(with(&[], &[("SCAFO_LOG", "debug"), ("SCAFO_URL", "http://x"), ("PATH", "/bin")], "").is_ok());
}

#[test]
fn the_file_has_lists_tables_numbers_and_truth() {
    let file = r#"
        stateDir = "/srv/scafo"
        [node]
        labels = { region = "eu", rack = 7 }
        [platform]
        domains = ["b.example", "a.example", "b.example"]
        [api]
        listen = ["127.0.0.1:0", "[::1]:7400"]
        public = false
        jsonBytes = 4096
        [celld]
        env = { A = "1,2" }
        [deploy]
        queue = 3
    "#;
    let config = with(&[], &[], file).unwrap();
    assert_eq!(config.node.labels["rack"], "7");
    let domains: Vec<&str> = config.platform_domains.iter().map(Host::as_str).collect();
    assert_eq!(domains, ["a.example", "b.example"]);
    assert_eq!(config.api.listen.len(), 2);
    assert!(!config.api.public);
    assert_eq!(config.celld.env["A"], "1,2");
    assert_eq!(config.deploy.queue, 3);
    assert_eq!(config.runtime_dir, PathBuf::from("/srv/scafo/run"));
}

#[test]
fn what_is_no_toml_is_refused_with_its_line_and_without_its_text() {
    let refused = refusal(&[], &[], "[ingress]\ntoken = [\"hunter2\n");
    assert!(refused.contains("scafo.toml") && refused.contains("line 2"), "{refused}");
    assert!(!refused.contains("hunter2"));
}

#[test]
fn an_empty_ingress_token_is_refused_wherever_it_stands() {
    for (environment, file) in [
        (vec![("SCAFO_INGRESS_TOKEN", "")], ""),
        (vec![("SCAFO_INGRESS_TOKEN", "a,,b")], ""),
        (vec![], "ingress.token = [\"\"]"),
        (vec![], "ingress.token = []"),
    ] {
        assert!(refusal(&[], &environment, file).contains("empty token"), "{environment:?} {file}");
    }
    let two = with(&[], &[("SCAFO_INGRESS_TOKEN", "a, b")], "").unwrap();
    assert_eq!(two.ingress.tokens.iter().map(Secret::expose).collect::<Vec<_>>(), ["a", "b"]);
}

#[test]
fn an_ingress_token_that_no_request_can_carry_is_refused_without_being_shown() {
    for file in [
        "ingress.token = [\"fine\", \"hunter two\"]",
        "ingress.token = [\"hunter\\ttwo\"]",
        "ingress.token = [\"hunter\\u00e9\"]",
        "ingress.token = [\"hunter\\u007f\"]",
    ] {
        let refused = refusal(&[], &[], file);
        assert!(refused.contains("`ingress.token`") && refused.contains("ASCII"), "{refused}");
        assert!(!refused.contains("hunter"), "{refused}");
    }
    let trimmed = with(&[], &[], "ingress.token = [\" a~!\\n\"]").unwrap();
    assert_eq!(trimmed.ingress.tokens.iter().map(Secret::expose).collect::<Vec<_>>(), ["a~!"]);
}

#[test]
fn other_empty_variables_count_as_unset() {
    assert!(with(&[], &[("SCAFO_BUCKET_ENDPOINT", ""), ("SCAFO_LEASE_TTL", " ")], "").is_ok());
}

#[test]
fn a_bucket_needs_credentials_that_celld_can_read() {
    let name = ("SCAFO_BUCKET_NAME", "fleet");
    assert!(refusal(&[], &[name], "").contains("AWS_ACCESS_KEY_ID"));
    assert!(refusal(&[], &[name, ("AWS_PROFILE", "p")], "").contains("reads no profiles"));
    let keys = [name, ("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "s"), ("AWS_REGION", "eu-west-1")];
    let bucket = with(&[("bucket.prefix", "/a/b/")], &keys, "").unwrap().bucket.unwrap();
    assert_eq!((bucket.prefix.as_str(), bucket.region.as_str(), bucket.path_style), ("a/b", "eu-west-1", false));
    let near = with(&[("bucket.endpoint", "http://127.0.0.1:9000/")], &keys, "").unwrap().bucket.unwrap();
    assert_eq!(near.endpoint.as_deref(), Some("http://127.0.0.1:9000"));
    assert!(near.path_style);
}

#[test]
fn a_part_of_a_bucket_without_its_name_is_refused() {
    assert!(refusal(&[("bucket.endpoint", "http://x:1")], &[], "").contains("bucket.name"));
    let keys = [("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "s")];
    for (key, bad) in [("bucket.name", "s3://x"), ("bucket.prefix", "a/../b"), ("bucket.endpoint", "x:9000")] {
        let flags = [("bucket.name", "fleet"), (key, bad)];
        assert!(refusal(&flags, &keys, "").contains(key), "{key}");
    }
}

#[test]
fn the_api_listens_on_loopback_and_on_the_nodes_address() {
    let config = with(&[("node.address", "10.0.0.7")], &[], "").unwrap();
    let listen: Vec<String> = config.api.listen.iter().map(ToString::to_string).collect();
    assert_eq!(listen, ["127.0.0.1:7400", "10.0.0.7:7400"]);
    assert_eq!(with(&[("node.address", "127.0.0.1")], &[], "").unwrap().api.listen.len(), 1);
}

#[test]
fn a_public_address_of_the_node_is_refused_unless_celld_may_advertise_it() {
    let allowed = |value: &'static str| ("celld.env", value);
    for public in ["203.0.113.7", "8.8.8.8", "100.128.0.1", "2001:db8::1", "255.255.255.255"] {
        let refused = refusal(&[("node.address", public)], &[], "");
        assert!(refused.contains("`node.address`") && refused.contains("CELLD_UNSAFE_PUBLIC_ADVERTISE=1"), "{refused}");
        let no = with(&[("node.address", public), allowed("CELLD_UNSAFE_PUBLIC_ADVERTISE=0")], &[], "");
        assert!(no.is_err(), "{public}");
        with(&[("node.address", public), allowed("CELLD_UNSAFE_PUBLIC_ADVERTISE=1")], &[], "").unwrap();
    }
    for private in ["127.0.0.9", "10.83.0.1", "100.64.0.1", "169.254.7.7", "192.168.0.2", "fd00::7", "fe80::7", "::1"] {
        with(&[("node.address", private)], &[], "").unwrap();
    }
}

#[test]
fn an_api_that_no_other_machine_reaches_is_refused_for_a_node_that_others_are_to_reach() {
    let listening = |listen: &'static str| with(&[("node.address", "10.0.0.7"), ("api.listen", listen)], &[], "");
    for alone in ["127.0.0.1:7400", "127.0.0.1:0,[::1]:7400", "[::ffff:127.0.0.1]:7400"] {
        let refused = listening(alone).unwrap_err().to_string();
        assert!(refused.contains("`api.listen`") && refused.contains("node.address"), "{refused}");
        with(&[("node.address", "127.0.0.1"), ("api.listen", alone)], &[], "").unwrap();
        with(&[("api.listen", alone)], &[], "").unwrap();
    }
    for reached in ["127.0.0.1:7400,10.0.0.7:7400", "0.0.0.0:0", "[::]:7400", "10.99.0.7:7400"] {
        listening(reached).unwrap();
    }
}

#[test]
fn values_out_of_bounds_are_refused_with_the_rule() {
    for (key, bad) in [
        ("node.address", "example.com"),
        ("node.address", "0.0.0.0"),
        ("node.id", "Node_1"),
        ("lease.ttl", "15"),
        ("lease.ttl", "1ms"),
        ("node.liveness", "31s"),
        ("platform.domains", "localhost"),
        ("api.listen", "7400"),
        ("ingressd.listen", "localhost:80"),
        ("celld.portRange", "80-90"),
        ("celld.portRange", "24000-24000"),
        ("celld.env", "A-B=1"),
        ("deploy.queue", "0"),
        ("deploy.stagedBytes", "1MiB"),
        ("api.public", "yes"),
        ("observe.flush", "500ms"),
        ("observe.flush", "2d"),
        ("observe.otlp", "collector:4317"),
        ("observe.metricsListen", "7402"),
        ("observe.metricsListen", "0.0.0.0:7402"),
        ("observe.metricsListen", "[::]:7402"),
        ("observe.metricsListen", "10.83.0.1:7402"),
        ("stateDir", ""),
    ] {
        let refused = with(&[(key, bad)], &[], "").unwrap_err();
        assert!(
            matches!(&refused, Error::Value { key: named, origin: Origin::Flag, .. } if named == key),
            "{key}: {refused}"
        );
    }
}

#[test]
fn every_key_of_the_table_is_read() {
    let merged = Merged::of(&Layers {
        flags: &BTreeMap::new(),
        environment: &BTreeMap::new(),
        file: None,
        defaults: &BTreeMap::new(),
    })
    .unwrap();
    for key in KEYS {
        assert_eq!(merged.get(key.name).is_set(), !key.default.is_empty(), "{}", key.name);
    }
}
