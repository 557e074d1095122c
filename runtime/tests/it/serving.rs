//! What reaches the Worker, and how: health, requests, streams, WebSockets, assets, crons, state over restarts.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use nix::sys::signal::{Signal, kill};
use tokio_tungstenite::tungstenite::Message;

use crate::harness::{LIMIT, World, eventually, example, is_alive, join, request, request_of};

const ECHO: &str = "export default { fetch(request) { const url = new URL(request.url); \
    return new Response(`${request.method} ${url.protocol}//${url.host}${url.pathname} ${request.headers.get('x-celld-standin-proto')}`); } };";

#[test]
fn health_has_one_path_and_every_other_path_is_the_workers() {
    let world = World::new();
    world.deploy(&world.project(ECHO, ""));
    let node = world.node(&[]);
    let health = node.health();
    assert_eq!((health.status, health.body.as_str()), (200, r#"{"ok":true}"#));
    assert_eq!(health.header("content-type"), Some("application/json"));
    assert_eq!(node.get("/__celld/health").body, "GET http://shop.test/__celld/health null");
    let posted = request(node.public(), "POST", "/.well-known/celld/health", "", "").unwrap();
    assert_eq!(posted.status, 200, "the method is not looked at");
}

#[test]
fn everything_sent_to_the_port_is_answered_whatever_its_host() {
    let world = World::new();
    world.deploy(&world.project(ECHO, ""));
    let node = world.node(&[]);
    for host in ["blog.test", "shop.test:8080", "a.b.example", "localhost", "192.0.2.1:1", "[2001:db8::1]"] {
        let answer = request_of(host, node.public(), "GET", "/x", "", "").unwrap();
        assert_eq!((answer.status, answer.body), (200, format!("GET http://{host}/x null")));
    }
}

#[test]
fn the_older_surface_has_its_own_health_path() {
    let world = World::new();
    world.deploy(&world.project(ECHO, ""));
    let node = world.node(&[("CELLD_STANDIN_SURFACE", "0.3")]);
    assert_eq!(node.get("/__celld/health").body, r#"{"ok":true}"#);
    assert!(node.health().body.starts_with("GET "));
    assert_eq!(node.reload().status, 404);
    assert!(node.state().get("deployment").is_none());
}

#[test]
fn forwarded_headers_shape_the_url_only_where_they_are_trusted() {
    let world = World::new();
    world.deploy(&world.project(ECHO, ""));
    let forwarded =
        "X-Forwarded-Host: public.test, inner.test\r\nX-Forwarded-Proto: https\r\nx-celld-standin-proto: https\r\n";
    let mut node = world.node(&[]);
    let plain = request(node.public(), "GET", "/", forwarded, "").unwrap();
    assert_eq!(plain.body, "GET http://shop.test/ null");
    node.stopped();
    let node = world.node(&[("CELLD_TRUST_FORWARDED_HEADERS", "1")]);
    let trusted = request(node.public(), "GET", "/", forwarded, "").unwrap();
    assert_eq!(trusted.body, "GET https://public.test/ null");
}

#[test]
fn a_request_body_beyond_the_limit_is_refused() {
    let world = World::new();
    world.deploy(
        &world.project("export default { async fetch(r) { return new Response((await r.text()).length); } };", ""),
    );
    let node = world.node(&[("CELLD_MAX_REQUEST_BODY_BYTES", "10")]);
    let send = |body: &str| request(node.public(), "POST", "/", "", body).unwrap();
    assert_eq!(send("0123456789").body, "10");
    assert_eq!(send("0123456789a").status, 413);
}

#[test]
fn an_answer_is_passed_on_while_it_is_made() {
    let script = "export default { fetch(request) { const { readable, writable } = new TransformStream(); \
        const writer = writable.getWriter(); const text = new TextEncoder(); \
        const pause = Number(new URL(request.url).pathname.slice(1)); \
        (async () => { await writer.write(text.encode('first')); \
            await new Promise((resolve) => setTimeout(resolve, pause)); \
            await writer.write(text.encode('second')); await writer.close(); })(); \
        return new Response(readable); } };";
    let world = World::new();
    world.deploy(&world.project(script, ""));
    let node = world.node(&[]);
    // A busy machine may look only when both are there.
    let passed_on = [1_000, 5_000, 25_000].into_iter().any(|pause| {
        let mut stream = TcpStream::connect(node.public()).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let request = format!("GET /{pause} HTTP/1.1\r\nHost: shop.test\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut seen = String::new();
        let mut buffer = [0; 4096];
        while !seen.contains("first") {
            let read = stream.read(&mut buffer).unwrap();
            assert_ne!(read, 0, "{seen}");
            seen.push_str(&String::from_utf8_lossy(&buffer[..read]));
        }
        let apart = !seen.contains("second");
        stream.read_to_string(&mut seen).unwrap();
        assert!(seen.contains("second"), "{seen}");
        apart
    });
    assert!(passed_on, "it is held back until the end");
}

#[test]
fn the_counter_counts_and_keeps_its_count_over_restarts_and_kills() {
    let world = World::new();
    world.deploy(&example("counter"));
    let mut node = world.node(&[]);
    assert_eq!(node.get("/a").body, "1\n");
    assert_eq!(node.get("/a").body, "2\n");
    assert_eq!(node.get("/b").body, "1\n", "each path counts for itself");
    node.stopped();
    let mut node = world.node(&[]);
    assert_eq!(node.get("/a").body, "3\n");
    node.signal(Signal::SIGKILL);
    node.ended();
    let node = world.node(&[]);
    assert_eq!(node.get("/a").body, "4\n");
}

#[test]
fn a_killed_node_leaves_no_workerd_behind() {
    let world = World::new();
    world.deploy(&example("counter"));
    let mut node = world.node(&[]);
    let workerd = node.children("workerd");
    assert_eq!(workerd.len(), 1);
    node.signal(Signal::SIGKILL);
    node.ended();
    eventually("workerd is gone", || (!is_alive(workerd[0])).then_some(()));
}

#[test]
fn a_workerd_that_dies_is_started_again_and_requests_wait_for_it() {
    let world = World::new();
    world.deploy(&example("counter"));
    let node = world.node(&[]);
    assert_eq!(node.get("/").body, "1\n");
    let first = node.children("workerd");
    kill(first[0], Signal::SIGKILL).unwrap();
    let answer = node.get("/");
    assert_eq!((answer.status, answer.body.as_str()), (200, "2\n"));
    assert_ne!(node.children("workerd"), first);
    assert_eq!(node.state()["deployment"]["generation"], 1, "a restart is no new generation");
}

#[test]
fn hello_greets_with_its_variable() {
    let world = World::new();
    world.deploy(&example("hello"));
    let node = world.node(&[]);
    assert_eq!(node.get("/?name=you").body, "Hello, you!\n");
}

#[test]
fn members_of_a_chat_room_hear_each_other() {
    let world = World::new();
    world.deploy(&example("chat"));
    let node = world.node(&[]);
    let (mut one, mut two, mut elsewhere) = (join(&node, "/lobby"), join(&node, "/lobby"), join(&node, "/attic"));
    elsewhere.send(Message::text("nobody hears this")).unwrap();
    one.send(Message::text("hello")).unwrap();
    assert_eq!(two.read().unwrap().into_text().unwrap().as_str(), "hello");
    two.send(Message::text("hello yourself")).unwrap();
    assert_eq!(one.read().unwrap().into_text().unwrap().as_str(), "hello yourself");
    assert_eq!(node.state()["node_load"]["host_websockets"], 3);
    one.close(None).unwrap();
    assert_eq!(node.get("/lobby").status, 426);
}

#[test]
fn assets_are_served_by_their_rules() {
    let world = World::new();
    world.deploy(&example("static"));
    let node = world.node(&[]);
    assert!(node.get("/").body.contains("nothing but files"));
    let about = node.get("/about");
    assert!(about.status == 200 && about.body.contains("about.html"), "{about:?}");
    let redirected = node.get("/about.html");
    assert_eq!((redirected.status, redirected.header("location")), (307, Some("/about")));
    assert_eq!(node.get("/style.css").header("cache-control"), Some("public, max-age=3600"));
    let moved = node.get("/home");
    assert_eq!((moved.status, moved.header("location")), (301, Some("/")));
    let missing = node.get("/missing");
    assert!(missing.status == 404 && missing.body.contains("no such page"), "{missing:?}");
    assert_eq!(node.get("/_headers").status, 404);
}

#[test]
fn assets_and_a_worker_share_an_application() {
    let world = World::new();
    let project = world.project(
        "export default { async fetch(request, env) { const url = new URL(request.url); \
            if (url.pathname === '/binding') return env.FILES.fetch(new URL('/page', url)); \
            return new Response('worker ' + url.pathname); } };",
        r#", "assets": { "directory": "public", "binding": "FILES", "run_worker_first": ["/first/*"] }"#,
    );
    for directory in ["public/first", "public/.well-known"] {
        std::fs::create_dir_all(project.join(directory)).unwrap();
    }
    for (file, body) in [("page.html", "page"), ("first/file.txt", "file"), (".well-known/dots.txt", "dots")] {
        std::fs::write(project.join("public").join(file), body).unwrap();
    }
    world.deploy(&project);
    let node = world.node(&[]);
    assert_eq!(node.get("/page").body, "page");
    assert_eq!(node.get("/binding").body, "page");
    assert_eq!(node.get("/.well-known/dots.txt").body, "dots");
    assert_eq!(node.get("/other").body, "worker /other");
    assert_eq!(node.get("/first/file.txt").body, "worker /first/file.txt");
}

#[test]
fn wasm_modules_and_services_of_the_fleet_are_bound() {
    let world = World::new();
    let target = world.named_project(
        "other",
        "import { WorkerEntrypoint } from 'cloudflare:workers'; \
         export class Api extends WorkerEntrypoint { add(a, b) { return a + b; } } \
         export default { fetch() { return new Response('other'); } };",
        "",
    );
    world.deploy(&target);
    let project = world.project(
        "import wasm from './add.wasm'; \
         export default { async fetch(request, env) { \
            const { exports } = await WebAssembly.instantiate(wasm); \
            const other = await (await env.OTHER.fetch(request)).text(); \
            return new Response(`${exports.add(2, 3)} ${other} ${await env.API.add(4, 5)}`); } };",
        r#", "services": [{ "binding": "OTHER", "service": "other" }, { "binding": "API", "service": "other", "entrypoint": "Api" }]"#,
    );
    // (module (func (export "add") (param i32 i32) (result i32) local.get 0 local.get 1 i32.add))
    let wasm = b"\0asm\x01\0\0\0\x01\x07\x01\x60\x02\x7f\x7f\x01\x7f\x03\x02\x01\0\x07\x07\x01\x03add\0\0\x0a\x09\x01\x07\0\x20\0\x20\x01\x6a\x0b";
    std::fs::write(project.join("add.wasm"), wasm).unwrap();
    world.deploy(&project);
    let node = world.node(&[]);
    assert_eq!(node.get("/").body, "5 other 9");
}

#[test]
fn a_service_that_is_not_deployed_is_named() {
    let world = World::new();
    let settings = r#", "services": [{ "binding": "X", "service": "gone" }]"#;
    world.deploy(&world.project("export default {}", settings));
    let mut node = world.start(&[]);
    assert_eq!(node.ended().code(), Some(1));
    assert!(node.stderr().contains("\"gone\""), "{}", node.stderr());
}

#[test]
fn a_cron_fires_within_its_minute() {
    let world = World::new();
    let script = "let fired = []; export default { fetch() { return Response.json(fired); }, \
        scheduled(event) { fired.push([event.cron, event.scheduledTime % 60000]); } };";
    world.deploy(&world.project(script, r#", "triggers": { "crons": ["* * * * *", "0 0 30 2 *"] }"#));
    let node = world.node(&[]);
    let give_up = std::time::Instant::now() + Duration::from_secs(60) + LIMIT;
    loop {
        let fired = node.get("/").json();
        if fired != serde_json::json!([]) {
            assert_eq!(fired, serde_json::json!([["* * * * *", 0]]));
            return;
        }
        assert!(std::time::Instant::now() < give_up, "no cron fired: {}", node.stdout());
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn an_exception_of_the_worker_is_a_500_and_its_words_are_logged() {
    let world = World::new();
    world.deploy(
        &world.project("export default { fetch() { console.log('about to'); throw new Error('oh no'); } };", ""),
    );
    let node = world.node(&[]);
    assert_eq!(node.get("/").status, 500);
    eventually("it is logged", || node.stdout().contains("about to").then_some(()));
}

#[test]
fn a_workerd_that_answers_nothing_any_more_is_started_again_however_often_the_pointer_is_looked_at() {
    let world = World::new();
    let script =
        "export default { fetch(request) { while (request.url.endsWith('/loop')); return new Response('fine'); } };";
    world.deploy(&world.project(script, ""));
    let node = world.node(&[("CELLD_HANDLER_BUDGET_S", "2"), ("CELLD_DEPLOY_POLL_S", "1")]);
    let first = node.children("workerd");
    let stuck = request(node.public(), "POST", "/loop", "", "x").unwrap();
    assert_eq!(stuck.status, 502, "what was under way is lost: {stuck:?}");
    eventually("it answers again", || (node.get("/").body == "fine").then_some(()));
    assert_ne!(node.children("workerd"), first);
}

#[test]
fn commonjs_packages_may_require_modules_of_node() {
    let world = World::new();
    let project = world.project(
        "import paths from './paths.cjs'; export default { fetch() { return new Response(paths.join('a', 'b')); } };",
        r#", "compatibility_flags": ["nodejs_compat"]"#,
    );
    std::fs::write(project.join("paths.cjs"), "module.exports = { join: require('node:path').join };").unwrap();
    world.deploy(&project);
    let node = world.node(&[]);
    assert_eq!(node.get("/").body, "a/b");
}

const ALARMING: &str = r#"
import { DurableObject } from "cloudflare:workers";
export class Clock extends DurableObject {
  async fetch() {
    const rang = (await this.ctx.storage.get("rang")) ?? 0;
    if (!rang && (await this.ctx.storage.getAlarm()) === null) await this.ctx.storage.setAlarm(Date.now() + 100);
    return new Response(String(rang));
  }
  async alarm() {
    await this.ctx.storage.put("rang", 1);
  }
}
export default { fetch(request, env) { return env.CLOCK.getByName("one").fetch(request); } };"#;

#[test]
fn an_alarm_rings_while_the_node_runs() {
    let world = World::new();
    let settings = r#", "durable_objects": { "bindings": [{ "name": "CLOCK", "class_name": "Clock" }] },
        "migrations": [{ "tag": "v1", "new_sqlite_classes": ["Clock"] }]"#;
    world.deploy(&world.project(ALARMING, settings));
    let node = world.node(&[]);
    assert_eq!(node.get("/").body, "0");
    eventually("it has rung", || (node.get("/").body == "1").then_some(()));
}
