//! The proxies, each told the same: so many hosts, all before one upstream.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use scafo_tests::node::built;
use scafo_tests::process;
use serde_json::{Map, Value, json};
use tokio::task::JoinSet;

use super::host;

/// One of them, running.
pub(super) struct Proxy {
    pub(super) name: &'static str,
    pub(super) address: String,
    running: Option<Running>,
    _document: Option<JoinSet<()>>,
}

impl Proxy {
    /// Bytes that it holds, with its workers.
    pub(super) fn resident(&self) -> u64 {
        let Some(Running(child)) = &self.running else { return 0 };
        let workers = process::all().into_iter().filter(|process| process.parent == child.id());
        workers.map(|worker| process::resident(worker.pid)).sum::<u64>() + process::resident(child.id())
    }
}

/// A child that ends with the benchmark.
pub(crate) struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        process::signal(self.0.id(), nix::sys::signal::Signal::SIGTERM);
        let _ = self.0.wait();
    }
}

/// Everybody, and the upstream without anybody.
pub(super) async fn start_all(dir: &Path, upstream: &str, hosts: usize) -> Vec<Proxy> {
    let hosts: Vec<String> = (0..hosts).map(host).collect();
    let proxy = |name, address: String, running| Proxy { name, address, running: Some(running), _document: None };
    let direct = Proxy { name: "direct", address: upstream.to_owned(), running: None, _document: None };
    let [own, other, third, fourth] = [(); 4].map(|()| free_port());
    let document = document(dir, upstream, &hosts).await;
    let ingressd = ingressd(dir, &own);
    vec![
        direct,
        Proxy { name: "ingressd", address: own, running: Some(ingressd), _document: Some(document) },
        proxy("nginx", other.clone(), nginx(dir, "proxy", &nginx_server(&other, upstream, &hosts))),
        proxy("Caddy", third.clone(), caddy(dir, &third, upstream, &hosts)),
        proxy("Traefik", fourth.clone(), traefik(dir, &fourth, upstream, &hosts)),
    ]
}

fn start(command: &mut Command) -> Running {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Running(command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}")))
}

/// nginx in that directory. Its workers stay who we are (`user`): as root they would become somebody else, who may not write in the
/// directories that we made. Without root there is nothing to become, and nginx passes over the line.
pub(crate) fn nginx(dir: &Path, name: &str, server: &str) -> Running {
    let config = dir.join(format!("{name}.conf"));
    let text = format!(
        "user root; worker_processes 2; daemon off; pid {name}.pid; error_log stderr; events {{ worker_connections 4096; }} \
         http {{ access_log off; client_body_temp_path {name}-b; proxy_temp_path {name}-p; fastcgi_temp_path {name}-f; \
         uwsgi_temp_path {name}-u; scgi_temp_path {name}-s; {server} }}"
    );
    std::fs::write(&config, text).expect("a file");
    start(Command::new("nginx").arg("-p").arg(dir).arg("-c").arg(config))
}

fn nginx_server(listen: &str, upstream: &str, hosts: &[String]) -> String {
    let map: String = hosts.iter().map(|host| format!("{host} app;\n")).collect();
    format!(
        "map_hash_max_size 262144; map_hash_bucket_size 128; map $host $app {{ default \"\";\n{map} }} \
         upstream app {{ server {upstream}; keepalive 128; }} \
         server {{ listen {listen}; location / {{ if ($app = \"\") {{ return 404; }} proxy_pass http://$app; \
         proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_set_header Host $host; }} }}"
    )
}

fn caddy(dir: &Path, listen: &str, upstream: &str, hosts: &[String]) -> Running {
    let route = json!({
        "match": [{"host": hosts}],
        "handle": [{"handler": "reverse_proxy", "upstreams": [{"dial": upstream}]}],
    });
    let server = json!({"listen": [listen], "automatic_https": {"disable": true}, "routes": [route]});
    let config = json!({
        "admin": {"disabled": true, "config": {"persist": false}},
        "apps": {"http": {"servers": {"bench": server}}},
    });
    let path = dir.join("caddy.json");
    std::fs::write(&path, config.to_string()).expect("a file");
    start(Command::new(tool("caddy")).args(["run", "--config"]).arg(path).env("HOME", dir))
}

fn traefik(dir: &Path, listen: &str, upstream: &str, hosts: &[String]) -> Running {
    let mut routers = Map::new();
    for host in hosts {
        let router = json!({"rule": format!("Host(`{host}`)"), "service": "app", "entryPoints": ["web"]});
        routers.insert(format!("scafo_{host}"), router);
    }
    let service = json!({"app": {"loadBalancer": {"servers": [{"url": format!("http://{upstream}")}]}}});
    let dynamic = dir.join("traefik-dynamic.yml");
    std::fs::write(&dynamic, json!({"http": {"routers": Value::Object(routers), "services": service}}).to_string())
        .expect("a file");
    let config = json!({
        "global": {"checkNewVersion": false, "sendAnonymousUsage": false},
        "log": {"level": "ERROR"},
        "entryPoints": {"web": {"address": listen}},
        "providers": {"file": {"filename": dynamic, "watch": false}},
    });
    let path = dir.join("traefik.yml");
    std::fs::write(&path, config.to_string()).expect("a file");
    start(Command::new(tool("traefik")).arg(format!("--configfile={}", path.display())))
}

/// What scripts/bench-tools.sh installed.
fn tool(name: &str) -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map_or_else(|| PathBuf::from(std::env::var_os("HOME").expect("a home")).join(".cache"), PathBuf::from);
    cache.join("scafo/bench/bin").join(name)
}

fn ingressd(dir: &Path, listen: &str) -> Running {
    let node = std::fs::read_to_string(dir.join("document-url")).expect("the document is served");
    let mut command = Command::new(built("scafo-ingressd"));
    start(command.args(["--node", &node, "--listen", listen, "--token-file"]).arg(dir.join("token")))
}

/// Serves a routing document, as a node would, until it is dropped.
async fn document(dir: &Path, upstream: &str, hosts: &[String]) -> JoinSet<()> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let route = |host: &String| json!({"host": host, "application": "bench", "upstreams": [{"node": "n", "address": upstream}]});
    let body = json!({"v": 1, "routes": hosts.iter().map(route).collect::<Vec<_>>()}).to_string();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    std::fs::write(dir.join("document-url"), format!("http://{}", listener.local_addr().expect("bound")))
        .expect("a file");
    std::fs::write(dir.join("token"), "benchmark").expect("a file");
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            let mut head = [0; 4096];
            let read = connection.read(&mut head).await.unwrap_or_default();
            // Once is enough: what is measured is no poll.
            let known = String::from_utf8_lossy(&head[..read]).to_ascii_lowercase().contains("if-none-match");
            let (status, body) = if known { ("304 Not Modified", "") } else { ("200 OK", body.as_str()) };
            let length = body.len();
            let head = format!(
                "HTTP/1.1 {status}\r\ncontent-type: application/json\r\netag: \"1\"\r\ncontent-length: {length}\r\n\
                 connection: close\r\n\r\n"
            );
            let _ = connection.write_all(head.as_bytes()).await;
            let _ = connection.write_all(body.as_bytes()).await;
        }
    });
    serving
}

pub(crate) fn free_port() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("bound").to_string()
}
