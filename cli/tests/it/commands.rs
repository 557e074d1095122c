//! The commands that operators need: what each asks of a node, what it prints, how it exits.

use scafo_core::{Problem, ProblemCode};
use serde_json::{Value, json};

use crate::node::{Asked, Node, Say, state};
use crate::run::{Home, Ran};

fn application(more: &Value) -> Value {
    let mut record = json!({ "v": 1, "name": "shop", "createdAt": "2026-04-01T12:30:00.000Z", "blocked": false });
    record.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({ "application": record })
}

fn operator(id: &str, more: &Value) -> Value {
    let mut record = json!({
        "v": 1, "id": id, "role": "operator", "applications": ["shop"], "createdAt": "2026-04-01T12:30:00.000Z",
        "publicKey": { "kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo" },
    });
    record.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({ "operator": record })
}

fn asked(asked: &Asked) -> String {
    let body = String::from_utf8_lossy(&asked.body).into_owned();
    format!("{} {} {body}", asked.method, asked.uri).trim_end().to_owned()
}

/// One command, the one request that it makes, the answer to that, and what it prints about it.
async fn check(line: &str, request: &str, answer: Value, stdout: &str) {
    let home = Home::new();
    let node = Node::start([Say::Json(200, answer.clone()), Say::Json(200, answer)]).await;
    let ran = home.against(&node.url, line).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), stdout), "{line}: {}", ran.all());
    let all = node.asked();
    assert_eq!(all.iter().map(asked).collect::<Vec<_>>(), [request], "{line}");
    all[0].verified_jti();
    let ran = home.against(&node.url, &format!("{line} --json")).await;
    assert!(ran.code == Some(0) && ran.stdout.lines().count() == 1, "{line}: {}", ran.all());
    serde_json::from_str::<Value>(&ran.stdout).unwrap();
}

#[tokio::test]
async fn each_change_of_an_application_is_one_request_and_one_line() {
    let retired = application(&json!({ "retiredAt": "2026-04-02T00:00:00.000Z" }));
    let rows = [
        (
            "app retire shop",
            "POST /v1/applications/shop/retire",
            retired,
            "shop is retired since 2026-04-02T00:00:00.000Z\n",
        ),
        ("app unretire shop", "POST /v1/applications/shop/unretire", application(&json!({})), "shop is not retired\n"),
        ("app block shop", "POST /v1/applications/shop/block", application(&json!({})), "shop is blocked\n"),
        ("app unblock shop", "POST /v1/applications/shop/unblock", application(&json!({})), "shop is not blocked\n"),
        (
            "app selector shop tier=fast region=eu=1",
            r#"POST /v1/applications/shop/selector {"selector":{"region":"eu=1","tier":"fast"}}"#,
            application(&json!({ "nodeSelector": { "region": "eu=1", "tier": "fast" } })),
            "shop is for nodes with region=eu=1 tier=fast\n",
        ),
        (
            "app selector shop --any",
            r#"POST /v1/applications/shop/selector {"selector":null}"#,
            application(&json!({})),
            "shop is for any node\n",
        ),
        (
            "app replicas shop 3",
            r#"POST /v1/applications/shop/replicas {"replicas":3}"#,
            application(&json!({ "replicas": 3 })),
            "shop is for 3 nodes\n",
        ),
        (
            "app replicas shop all",
            r#"POST /v1/applications/shop/replicas {"replicas":"all"}"#,
            application(&json!({ "replicas": "all" })),
            "shop is for each node that may serve it\n",
        ),
        (
            "app labels shop plan=pro",
            r#"POST /v1/applications/shop/labels {"labels":{"plan":"pro"}}"#,
            application(&json!({ "labels": { "plan": "pro" } })),
            "shop has the labels plan=pro\n",
        ),
        (
            "app labels shop --clear",
            r#"POST /v1/applications/shop/labels {"labels":{}}"#,
            application(&json!({})),
            "shop has no labels\n",
        ),
        (
            "app delete shop --force",
            "DELETE /v1/applications/shop?force=1",
            json!({ "deleted": ["a", "b"] }),
            "shop is deleted, 2 objects\n",
        ),
        ("app delete shop", "DELETE /v1/applications/shop", json!({ "deleted": [] }), "shop is deleted, 0 objects\n"),
        (
            "app show shop",
            "GET /v1/applications/shop",
            application(&json!({})),
            "name        shop\nstate       undeployed\nreplicas    1\nselector    any node\ncreated     2026-04-01T12:30:00.000Z\n",
        ),
    ];
    for (line, request, answer, stdout) in rows {
        check(line, request, answer, stdout).await;
    }
}

#[tokio::test]
async fn domains_are_claimed_listed_and_given_up() {
    let claimed = |domains: Value, wildcards: Value| {
        let mut answer = application(&json!({ "domains": domains, "wildcardDomains": wildcards }));
        answer["host"] = "shop.example".into();
        answer["platformHosts"] = json!(["shop.apps.example"]);
        answer
    };
    let path = "/v1/applications/shop/domains/shop.example";
    check(
        "app domain add shop Shop.Example",
        &format!("POST {path}"),
        claimed(json!(["shop.example"]), json!([])),
        "shop has shop.example\n",
    )
    .await;
    check(
        "app domain add shop shop.example --wildcard",
        &format!("POST {path}?wildcard=1"),
        claimed(json!(["shop.example"]), json!(["shop.example"])),
        "shop has shop.example and the label below it\n",
    )
    .await;
    check(
        "app domain remove shop shop.example",
        &format!("DELETE {path}"),
        claimed(json!([]), json!([])),
        "shop has given up shop.example\n",
    )
    .await;
    check(
        "app domain list shop",
        "GET /v1/applications/shop",
        claimed(json!(["a.example", "shop.example"]), json!(["a.example"])),
        "HOST          LABEL BELOW\na.example     yes\nshop.example  no\n",
    )
    .await;
}

#[tokio::test]
async fn freezing_and_lifting_say_what_holds_now() {
    let freeze = json!({ "v": 1, "frozenAt": "2026-04-01T12:30:00.000Z", "by": "ops" });
    let frozen = "deploys are frozen since 2026-04-01T12:30:00.000Z by ops\n";
    let created = json!({ "freeze": freeze, "created": true });
    check("fleet freeze", "POST /v1/fleet/freeze", created.clone(), frozen).await;
    check("fleet freeze --reason noon", r#"POST /v1/fleet/freeze {"reason":"noon"}"#, created, frozen).await;
    check("fleet unfreeze", "DELETE /v1/fleet/freeze", json!({ "lifted": true }), "deploys are taken again\n").await;
    check("fleet unfreeze", "DELETE /v1/fleet/freeze", json!({ "lifted": false }), "deploys were not frozen\n").await;

    let home = Home::new();
    let node = Node::start([Say::Json(200, json!({ "freeze": freeze, "created": false }))]).await;
    let ran = home.against(&node.url, "fleet freeze --reason later").await;
    assert!(ran.code == Some(0) && ran.stderr.contains("frozen already"), "{}", ran.all());
}

#[tokio::test]
async fn the_status_of_a_fleet_needs_no_freeze() {
    let home = Home::new();
    let thawed = || Say::Problem(Problem::new(ProblemCode::NotFound, "no freeze"));
    let node = Node::start([thawed(), Say::Json(200, state()), thawed(), Say::Json(200, state())]).await;
    let ran = home.against(&node.url, "fleet status").await;
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    assert!(ran.stdout.starts_with("deploys      taken\ncoordinator  vps-a"), "{}", ran.all());
    let ran = home.against(&node.url, "fleet status --json").await;
    let json: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((&json["freeze"], &json["coordinator"]["node"]), (&Value::Null, &"vps-a".into()));
}

#[tokio::test]
async fn a_refusal_names_the_next_step_of_its_command() {
    let home = Home::new();
    for (line, code, hint) in [
        ("app delete shop", ProblemCode::ReferenceHeld, "scafo app retire shop"),
        ("app delete shop", ProblemCode::Draining, "when a node coordinates"),
        ("app show shop", ProblemCode::NotFound, "scafo app list"),
        ("app block shop", ProblemCode::AuthScope, "an admin's key"),
        ("app retire shop", ProblemCode::AuthScope, "reaches the application"),
        ("app labels shop a=b", ProblemCode::ResourceLimit, "api.jsonBytes"),
        ("app domain add shop shop.example", ProblemCode::ReferenceHeld, "has to give it up first"),
        ("app domain remove shop shop.example", ProblemCode::NotFound, "scafo app domain list shop"),
        ("fleet freeze", ProblemCode::AuthScope, "an admin's key"),
        ("fleet status", ProblemCode::StoreUnavailable, "reaches its bucket"),
        ("operator revoke old", ProblemCode::ReferenceHeld, "register another key first"),
        ("operator revoke ops", ProblemCode::InvalidInput, "scafo operator rotate"),
        ("operator revoke old", ProblemCode::NotFound, "scafo operator list"),
    ] {
        let node = Node::start([Say::Problem(Problem::new(code, "the detail"))]).await;
        let ran = home.against(&node.url, line).await;
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{line}: {}", ran.all());
        for said in [code.as_str(), "\nthe detail\nhint: ", hint] {
            assert!(ran.stderr.contains(said), "{line}: {said} in {}", ran.all());
        }
        assert_eq!(node.asked().len(), 1, "{line}");
    }
}

#[tokio::test]
async fn operators_are_listed_and_revoked() {
    let list = json!({ "operators": [operator("ops", &json!({}))["operator"]], "scoped": true });
    let table = "ID     ROLE      APPLICATIONS  REPLACES  BY  CREATED\n\
                 ops *  operator  shop          -         -   2026-04-01T12:30:00.000Z\n";
    check("operator list", "GET /v1/operators", list, table).await;
    check("operator revoke old", "DELETE /v1/operators/old", json!({ "removed": "old" }), "old\n").await;
}

fn body(asked: &Asked) -> Value {
    serde_json::from_slice(&asked.body).unwrap()
}

#[tokio::test]
async fn a_key_that_is_made_for_another_is_written_first_and_works_by_itself() {
    use std::os::unix::fs::PermissionsExt as _;
    let home = Home::new();
    let node = Node::start([
        Say::Problem(Problem::new(ProblemCode::StoreUnavailable, "the bucket does not answer")),
        Say::Json(200, operator("ci", &json!({}))),
        Say::Json(200, json!({ "operators": [] })),
    ])
    .await;
    let line = "operator add ci --applications shop,shop-* --applications x --key-out robot.pem";
    let ran = home.against(&node.url, line).await;
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    let key = home.path().join("robot.pem");
    assert_eq!(key.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let before = std::fs::read(&key).unwrap();

    let ran = home.against(&node.url, line).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "ci\n"), "{}", ran.all());
    assert!(ran.stderr.contains("hand robot.pem over"), "{}", ran.all());
    assert_eq!(std::fs::read(&key).unwrap(), before, "it may be known already");
    let asked = node.asked();
    let first = body(&asked[0]);
    assert_eq!(first, body(&asked[1]));
    assert_eq!((&first["id"], &first["role"]), (&"ci".into(), &"operator".into()));
    assert_eq!(first["applications"], json!(["shop", "shop-*", "x"]));
    assert_eq!(first["publicKey"]["kty"], "OKP");

    // Whoever gets the file needs no more than it.
    home.run(&format!("operator list --url {} --key robot.pem", node.url)).await;
    let token = node.asked()[0].header("authorization").to_owned();
    assert_eq!(scafo_core::token::Unverified::parse(token.strip_prefix("Bearer ").unwrap()).unwrap().kid(), "ci");
}

#[tokio::test]
async fn a_key_that_the_fleet_refused_is_not_kept() {
    let home = Home::new();
    let node = Node::start([Say::Problem(Problem::new(ProblemCode::ReferenceHeld, "the id is taken"))]).await;
    let ran = home.against(&node.url, "operator add ci --applications * --key-out robot.pem").await;
    assert!(ran.code == Some(1) && ran.stderr.contains("give another one"), "{}", ran.all());
    assert!(!home.path().join("robot.pem").exists());
}

#[tokio::test]
async fn a_public_key_that_somebody_sent_is_registered_as_it_is() {
    let home = Home::new();
    let jwk = json!({ "kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo" });
    std::fs::write(home.path().join("sent.json"), jwk.to_string()).unwrap();
    let node = Node::start([Say::Json(200, operator("op-d75a9801", &json!({})))]).await;
    let line = "operator add --applications * --role admin --public-key sent.json --json";
    let ran = home.against(&node.url, line).await;
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let asked = body(&node.asked()[0]);
    assert_eq!(asked, json!({ "id": "op-d75a9801", "publicKey": jwk, "role": "admin", "applications": ["*"] }));

    for (line, said) in [
        ("operator add --applications *,shop --public-key sent.json", "stands alone"),
        ("operator add --applications shop --public-key ops.pem", "holds a private key"),
    ] {
        let ran = home.against(&node.url, line).await;
        assert!(ran.code != Some(0) && ran.stderr.contains(said), "{line}: {}", ran.all());
    }
    assert!(node.asked().is_empty());
}

#[tokio::test]
async fn contexts_name_a_node_and_its_key() {
    let home = Home::new();
    let empty = || Say::Json(200, json!({ "applications": [] }));
    let node = Node::start([empty(), empty(), empty()]).await;
    let kid = |asked: &[Asked]| -> Vec<String> {
        asked
            .iter()
            .map(|asked| {
                asked.verified_jti();
                asked.uri.to_string()
            })
            .collect()
    };
    let ran = home.run(&format!("context add prod --url {} --key ops.pem", node.url)).await;
    assert!(ran.code == Some(0) && ran.stderr.contains("it is the current one"), "{}", ran.all());
    let ran = home.run("context add other --url http://127.0.0.1:1").await;
    assert!(ran.code == Some(0) && ran.stderr.contains("scafo context use other"), "{}", ran.all());

    let ran = home.run("app list").await;
    assert!(ran.code == Some(0) && ran.stderr.contains("context prod: http://127"), "{}", ran.all());
    assert_eq!(home.run("context use other").await.code, Some(0));
    let ran = home.run("app list --context prod").await;
    assert!(ran.code == Some(0) && !ran.stderr.contains("context prod"), "{}", ran.all());
    let mut command = home.command("app list");
    let ran = Ran::from(command.env("SCAFO_CONTEXT", "prod").output().await.unwrap());
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    assert_eq!(kid(&node.asked()), ["/v1/applications"; 3]);

    let ran = home.run("context list").await;
    let key = home.key().display().to_string();
    let url = &node.url;
    assert!(ran.stdout.contains("other *") && ran.stdout.contains(&key) && ran.stdout.contains(url), "{}", ran.all());
    let ran = home.run("context remove other --json").await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "{\"removed\":\"other\"}\n"), "{}", ran.all());
    let ran = home.run("context list --json").await;
    let json: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((&json["current"], &json["contexts"]["prod"]["url"]), (&Value::Null, &url.as_str().into()));
    let file = home.path().join(".config/scafo/contexts.toml");
    assert_eq!(std::os::unix::fs::MetadataExt::mode(&file.metadata().unwrap()) & 0o777, 0o600);

    for line in ["context use nobody", "app list --context nobody"] {
        let ran = home.run(line).await;
        assert!(ran.code == Some(1) && ran.stderr.contains("no context `nobody`"), "{line}: {}", ran.all());
    }
}

#[tokio::test]
async fn a_node_in_this_directory_comes_before_the_current_context() {
    let home = Home::new();
    let node = Node::start([]).await;
    home.run(&format!("context add prod --url {} --key ops.pem", node.url)).await;
    std::fs::create_dir(home.path().join(".scafo")).unwrap();
    let ran = home.run("app list").await;
    assert!(ran.code == Some(1) && ran.stderr.contains("no node runs on .scafo"), "{}", ran.all());
    assert!(ran.stderr.contains("--context") && node.asked().is_empty(), "{}", ran.all());
}

#[tokio::test]
async fn completions_and_pages_come_from_the_command_line_itself() {
    let home = Home::new();
    for (shell, said) in [("bash", "complete -F _scafo"), ("zsh", "#compdef scafo"), ("fish", "complete -c scafo")] {
        let ran = home.run(&format!("completions {shell}")).await;
        assert!(ran.code == Some(0) && ran.stdout.contains(said), "{shell}: {}", ran.stderr);
    }
    for (line, said) in [("man", ".TH scafo 1"), ("man app domain add", ".TH scafo-app-domain-add 1")] {
        let ran = home.run(line).await;
        assert!(ran.code == Some(0) && ran.stdout.contains(said), "{line}: {}", ran.all());
    }
    assert_eq!(home.run("man nothing").await.code, Some(2));
    let ran = home.run("man --out pages/man1").await;
    assert!(ran.code == Some(0) && home.path().join("pages/man1/scafo.1").exists(), "{}", ran.all());
}
