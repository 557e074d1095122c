//! Certificates by Caddy from a real ACME server, kept in the fleet through a real node.

use std::net::SocketAddr;
use std::time::Duration;

use nix::sys::signal::Signal;
use reqwest::Method;
use reqwest::tls::TlsInfo;
use scafo_core::Timestamp;
use scafo_core::settings::TraefikTls;
use scafo_store::Bucket as _;
use scafo_tests::fault_proxy::{Exchange, FaultProxy, Operation};
use scafo_tests::fleet::{Fleet, PATIENT};
use scafo_tests::ingresses::authority::Authority;
use scafo_tests::ingresses::echo::Echo;
use scafo_tests::ingresses::fake_node::{FakeNode, Says};
use scafo_tests::ingresses::{Ingress, Kind, RESOLVER, Source};
use scafo_tests::{Node, Project, wait};
use serde_json::{Value, json};

use crate::nodes::{deploy, until_served_by};
use crate::storage::status;

const LIMIT: Duration = Duration::from_secs(120);
/// A first handshake waits for the whole issuance, and perhaps for the lock of an ingress that died: about 40 s.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(100);

/// The certificate that is shown for a name, and the answer behind it; nothing without a handshake.
async fn shown(https: SocketAddr, name: &str) -> Option<(Vec<u8>, u16)> {
    let client = reqwest::Client::builder()
        .tls_danger_accept_invalid_certs(true)
        .tls_info(true)
        .no_proxy()
        .resolve(name, https)
        .timeout(HANDSHAKE_LIMIT)
        .pool_max_idle_per_host(0)
        .build()
        .expect("constant settings");
    let answer = client.get(format!("https://{name}:{}/", https.port())).send().await.ok()?;
    let info = answer.extensions().get::<TlsInfo>()?.peer_certificate()?.to_vec();
    Some((info, answer.status().as_u16()))
}

/// The keys that the fleet holds.
async fn stored(node: &Node) -> Vec<String> {
    let answer = node.api().ingress("/v1/storage/list?prefix=&recursive=true").send().await.unwrap();
    if answer.status().as_u16() == 404 {
        return Vec::new();
    }
    answer.json::<Value>().await.map(|keys| serde_json::from_value(keys).unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_ordered_once_for_all_ingresses_and_only_for_names_of_the_document() {
    // reqwest takes the process's provider.
    drop(scafo_tests::load::client());
    let fleet = Fleet::new(&[&PATIENT[..], &[("SCAFO_PLATFORM_DOMAINS", "fleet.example")]].concat()).await;
    let (a, b) = (fleet.node("vps-a").await, fleet.node("vps-b").await);
    deploy(&a, &Project::answering("shop", "the shop"), "2").await;
    for node in [&a, &b] {
        until_served_by(node, "shop.fleet.example", &["vps-a", "vps-b"]).await;
    }
    let authority = Authority::start().await;
    let names = ["shop.fleet.example", "fleet.example"];

    // Three ingresses with empty disks, over both nodes.
    let mut first: Vec<Vec<u8>> = Vec::new();
    for node in [&a, &b, &a] {
        let caddy = Ingress::caddy_with_certificates(&Source::of(&node.dev), &authority).await;
        caddy.until_answered("shop.fleet.example", "/", 200, "the shop", LIMIT).await;
        let mut certificates = Vec::new();
        for name in names {
            let Some((certificate, status)) = shown(caddy.https(), name).await else {
                panic!("no certificate for {name}\n{}\n{}", caddy.log(), authority.log());
            };
            assert!(status == 200 || name == "fleet.example", "{name}: {status}");
            certificates.push(certificate);
        }
        for stranger in ["x.shop.fleet.example", "nobody.fleet.example", "stranger.example"] {
            assert!(shown(caddy.https(), stranger).await.is_none(), "{stranger} got a certificate");
        }
        if first.is_empty() {
            first = certificates;
        } else {
            assert_eq!(certificates, first, "another certificate was issued");
        }
    }
    // And the three at once, started again with nothing on their disks.
    let again = [&a, &b, &a].map(|node| async {
        let caddy = Ingress::caddy_with_certificates(&Source::of(&node.dev), &authority).await;
        caddy.until_answered("shop.fleet.example", "/", 200, "the shop", LIMIT).await;
        futures_util::future::join_all(names.map(|name| shown(caddy.https(), name))).await
    });
    for certificates in futures_util::future::join_all(again).await {
        let certificates: Vec<Vec<u8>> = certificates.into_iter().flatten().map(|(bytes, _)| bytes).collect();
        assert_eq!(certificates, first, "another certificate was issued");
    }
    assert_eq!(authority.orders(), 2, "{}", authority.log());

    let keys = stored(&b).await;
    for name in names {
        assert!(keys.iter().any(|key| key.ends_with(&format!("/{name}/{name}.key"))), "{keys:?}");
    }
    assert!(keys.iter().all(|key| !key.starts_with("acme/")), "the account is the ingress's own: {keys:?}");
    a.stop().await;
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ingresses_that_want_one_certificate_at_once_order_it_once() {
    drop(scafo_tests::load::client());
    let fleet = Fleet::new(&[&PATIENT[..], &[("SCAFO_PLATFORM_DOMAINS", "fleet.example")]].concat()).await;
    let node = fleet.node("vps-a").await;
    deploy(&node, &Project::answering("shop", "the shop"), "1").await;
    let authority = Authority::start().await;
    let source = Source::of(&node.dev);
    let name = "shop.fleet.example";
    let caddies =
        futures_util::future::join_all([(); 3].map(|()| Ingress::caddy_with_certificates(&source, &authority))).await;
    for caddy in &caddies {
        caddy.until_answered(name, "/", 200, "the shop", LIMIT).await;
    }
    let certificates = futures_util::future::join_all(caddies.iter().map(|caddy| shown(caddy.https(), name))).await;
    let first = certificates[0].as_ref().map(|(certificate, _)| certificate.clone());
    assert!(first.is_some(), "{}", caddies[0].log());
    for certificate in &certificates {
        assert_eq!(certificate.as_ref().map(|(bytes, _)| bytes), first.as_ref());
    }
    assert_eq!(authority.orders(), 1, "{}", authority.log());
    // Whoever had the lock has given it back: the next one need not wait until it lapses.
    let key = format!("_scafo/tls/locks/issue_cert_{name}");
    wait::until("the lock to be given back", LIMIT, || async {
        let Some(object) = fleet.store.bucket().get(&key).await.unwrap() else { return Some(()) };
        let lock: Value = serde_json::from_slice(&object.body).unwrap();
        // Who gives a lock back leaves it without a time.
        let held = lock["refreshedAt"].as_str().is_some_and(|at| at.parse::<Timestamp>().is_ok());
        (!held).then_some(())
    })
    .await;
    assert_eq!(lock(&node, name, Method::POST).await, 204);
    node.stop().await;
}

/// Takes or releases the lock of a name's issuance as an ingress of its own would.
async fn lock(node: &Node, name: &str, method: Method) -> u16 {
    status(&node.api(), method, &format!("/v1/storage/locks/issue_cert_{name}"), "the-test").await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ingress_that_is_killed_with_a_lock_does_not_keep_it() {
    drop(scafo_tests::load::client());
    let fleet = Fleet::new(&[&PATIENT[..], &[("SCAFO_PLATFORM_DOMAINS", "fleet.example")]].concat()).await;
    let (a, b) = (fleet.node("vps-a").await, fleet.node("vps-b").await);
    deploy(&a, &Project::answering("shop", "the shop"), "2").await;
    let name = "shop.fleet.example";
    until_served_by(&b, name, &["vps-a", "vps-b"]).await;
    let authority = Authority::start().await;
    let first = Ingress::caddy_with_certificates(&Source::of(&a.dev), &authority).await;
    let second = Ingress::caddy_with_certificates(&Source::of(&b.dev), &authority).await;
    for caddy in [&first, &second] {
        caddy.until_answered(name, "/", 200, "the shop", LIMIT).await;
    }

    // An authority that does not answer keeps the first one busy while it holds the lock.
    authority.signal(Signal::SIGSTOP);
    let https = first.https();
    let mut waiting = tokio::task::JoinSet::new();
    waiting.spawn(async move { shown(https, name).await });
    wait::until("the lock to be held", LIMIT, || async {
        match lock(&b, name, Method::POST).await {
            204 => {
                assert_eq!(lock(&b, name, Method::DELETE).await, 204);
                None
            }
            other => (other == 409).then_some(()),
        }
    })
    .await;
    drop(first);
    assert!(waiting.join_next().await.unwrap().unwrap().is_none());
    authority.signal(Signal::SIGCONT);

    let certificate = shown(second.https(), name).await;
    assert!(certificate.is_some(), "{}\n{}", second.log(), authority.log());
    assert_eq!(authority.orders(), 1, "{}", authority.log());
    a.stop().await;
    b.stop().await;
}

/// A router asks for the certificate of its host, or for the wildcard that the operator named; the wildcard key asks for none,
/// and what it answers is served with whatever certificate Traefik has.
#[tokio::test(flavor = "multi_thread")]
async fn traefik_gets_the_certificates_that_its_routers_ask_for_and_none_for_a_wildcard_key() {
    drop(scafo_tests::load::client());
    let tls =
        TraefikTls { cert_resolver: RESOLVER.to_owned(), wildcard_bases: vec!["covered.example".parse().unwrap()] };
    let (node, echo) = (FakeNode::with_tls(Some(tls)).await, Echo::start(1).await);
    let upstreams = json!([{"node": "n1", "address": format!("127.0.0.1:{}", echo.ports()[0])}]);
    let hosts = ["*.shop.example", "shop.example", "www.covered.example"];
    let route = |host: &str| json!({"host": host, "application": "shop", "upstreams": upstreams.clone()});
    let document = json!({"v": 1, "routes": hosts.map(route)});
    node.say(Says::Document(serde_json::from_value(document).unwrap()));
    let kinds: &[Kind] = if crate::long() { &[Kind::Traefik, Kind::OldestTraefik] } else { &[Kind::Traefik] };
    for kind in kinds {
        let authority = Authority::start().await;
        let traefik = Ingress::traefik_with_certificates(*kind, &node.source(), &authority).await;
        // Whether it is one of the authority, which says so in it, or one that Traefik makes up.
        let issued = async |name: &str| {
            let (certificate, status) = shown(traefik.https(), name).await?;
            (status == 200).then(|| certificate.windows(6).any(|text| text == b"Pebble"))
        };
        for (name, expected) in [
            ("shop.example", true),
            ("x.shop.example", false),
            // This authority grants no wildcard for an answer over HTTP; the router is served all the same.
            ("www.covered.example", false),
        ] {
            wait::until(&format!("the certificate of {name}"), HANDSHAKE_LIMIT, || async {
                (issued(name).await? == expected).then_some(())
            })
            .await;
        }
        assert_eq!(shown(traefik.https(), "nobody.example").await.unwrap().1, 404);
        let log = traefik.log();
        assert!(log.contains("*.covered.example") && !log.contains("*.shop.example"), "{log}");
        // Nothing answers without TLS where certificates are served.
        assert_eq!(traefik.ask("shop.example", "/").await.unwrap().status, 404);
    }
}

/// Ingresses that have nothing to do leave the bucket alone, however many certificates there are, and locks never move the hint
/// that tells the nodes to look at the registry.
#[tokio::test(flavor = "multi_thread")]
async fn ingresses_at_rest_ask_the_bucket_for_nothing() {
    drop(scafo_tests::load::client());
    let (certificates, rest) = if crate::long() { (1000, 300) } else { (80, 10) };
    let patience = HANDSHAKE_LIMIT.max(Duration::from_secs(certificates));
    let certificates = usize::try_from(certificates).unwrap();
    let fleet = Fleet::new(&[&PATIENT[..], &[("SCAFO_PLATFORM_DOMAINS", "fleet.example")]].concat()).await;
    let proxy = FaultProxy::start(fleet.store.access(), 1).await.unwrap();
    let node = fleet.node_with("vps-a", &[("SCAFO_BUCKET_ENDPOINT", proxy.endpoint())]).await;
    deploy(&node, &Project::answering("shop", "the shop"), "1").await;
    let authority = Authority::start().await;
    let (source, name) = (Source::of(&node.dev), "shop.fleet.example");
    let first = Ingress::caddy_with_certificates(&source, &authority).await;
    first.until_answered(name, "/", 200, "the shop", LIMIT).await;
    assert!(shown(first.https(), name).await.is_some(), "{}", first.log());
    drop(first);
    copy_certificates(&node, name, certificates).await;

    let caddies =
        futures_util::future::join_all([(); 3].map(|()| Ingress::caddy_with_certificates(&source, &authority))).await;
    for caddy in &caddies {
        caddy.until_answered(name, "/", 200, "the shop", LIMIT).await;
        assert!(shown(caddy.https(), name).await.is_some(), "{}", caddy.log());
        // Each looks once through what is stored for what has expired; one does it, and the others see that it has been done.
        wait::until("the first look through the storage", patience, || async {
            caddy.log().contains("finished cleaning storage units").then_some(())
        })
        .await;
    }
    let of_storage = |exchange: &Exchange| exchange.asked.key.contains("_scafo/tls/");
    let looked = proxy.take_log().into_iter().filter(of_storage).count();
    assert!(looked < 20 * certificates + 500, "{looked} requests for {certificates} certificates");

    // What each does once at its start comes to an end at some time, and later on a busy machine.
    let mut at_rest = Vec::new();
    for _ in 0..6 {
        tokio::time::sleep(Duration::from_secs(rest)).await;
        at_rest = proxy.take_log().into_iter().filter(of_storage).map(|exchange| exchange.asked).collect();
        if at_rest.is_empty() {
            break;
        }
    }
    assert!(at_rest.is_empty(), "{} requests, {:?} among them", at_rest.len(), at_rest.first());

    for _ in 0..20 {
        assert_eq!(lock(&node, "busy.example", Method::POST).await, 204);
        assert_eq!(lock(&node, "busy.example", Method::DELETE).await, 204);
    }
    let hints = proxy
        .take_log()
        .into_iter()
        .filter(|exchange| exchange.asked.operation == Operation::Put && exchange.asked.key.ends_with("changes.json"));
    assert_eq!(hints.count(), 0, "locks are nothing that a node has to look for");
    node.stop().await;
}

/// Stores the certificate of `name` under many other names as well.
async fn copy_certificates(node: &Node, name: &str, copies: usize) {
    let api = node.api();
    let keys = stored(node).await;
    let issued = keys.iter().filter(|key| key.starts_with("certificates/") && key.contains(name));
    for key in issued {
        let value = api.ingress(&format!("/v1/storage/objects/{key}")).send().await.unwrap().bytes().await.unwrap();
        for copy in 0..copies {
            let path = format!("/v1/storage/objects/{}", key.replace(name, &format!("copy-{copy}.fleet.example")));
            let answer = api.ingress_with(Method::PUT, &path).body(value.clone()).send().await.unwrap();
            assert_eq!(answer.status().as_u16(), 204, "{path}");
        }
    }
}
