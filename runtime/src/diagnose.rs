//! `diagnose`: can a node with these settings live here? Binds, probes, and looks at the leases; peers by their lease only,
//! since a stand-in has no key to ask them with.

use serde_json::json;

use crate::{
    args::DiagnoseOptions,
    bucket::Fleet,
    environment::Surface,
    failure::{Context, Exit, Outcome},
    lease::now_ms,
    node, output,
    probe::{self, Verdict},
    settings::NodeSettings,
};

/// Rows of the answer, and whether one of them failed.
struct Rows {
    surface: Surface,
    json: bool,
    failed: bool,
}

/// Looks at everything, says what it saw, and ends with 1 if anything failed.
///
/// # Errors
/// No runtime to ask with.
pub(crate) fn run(settings: &NodeSettings, fleet: Option<&Fleet>, options: &DiagnoseOptions) -> Outcome<Exit> {
    let mut rows = Rows { surface: settings.surface, json: options.json, failed: false };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context(|| "start the runtime".into())?;
    runtime.block_on(async {
        listeners(settings, &mut rows);
        match fleet {
            None => rows.row("skip", "bucket", "none is configured"),
            Some(fleet) => bucket(fleet, options, &mut rows).await,
        }
    });
    Ok(if rows.failed { Exit::Refused } else { Exit::Clean })
}

fn listeners(settings: &NodeSettings, rows: &mut Rows) {
    let public = std::net::TcpListener::bind(settings.listen);
    match &public {
        Ok(listener) => rows.row("ok", "listen", &shown(listener)),
        Err(error) => rows.row("fail", "listen", &format!("{}: {error}", settings.listen)),
    }
    // Bound together: two of one port would be found out.
    match std::net::TcpListener::bind(settings.internal_listen) {
        Ok(listener) => {
            rows.row("ok", "internal listen", &shown(&listener));
            rows.row("ok", "advertise", settings.advertise.as_deref().unwrap_or(&shown(&listener)));
        }
        Err(error) => rows.row("fail", "internal listen", &format!("{}: {error}", settings.internal_listen)),
    }
}

fn shown(listener: &std::net::TcpListener) -> String {
    listener.local_addr().map_or_else(|error| error.to_string(), |address| address.to_string())
}

async fn bucket(fleet: &Fleet, options: &DiagnoseOptions, rows: &mut Rows) {
    let bucket = &*fleet.bucket;
    let leases = match node::leases(bucket).await {
        Ok(leases) => {
            rows.row("ok", "bucket", &fleet.name.to_string());
            leases
        }
        Err(failure) => return rows.row("fail", "bucket", &format!("{}: {}", fleet.name, failure.chain())),
    };
    if options.read_only {
        rows.row("skip", "bucket write probe", "--read-only");
    } else {
        match probe::conditional_writes(bucket, "diagnose").await {
            Ok(Verdict::Honoured) => rows.row("ok", "bucket conditional write", "create, update, and their refusals"),
            Ok(Verdict::Unclear(why)) => rows.row("fail", "bucket conditional write", &why),
            Err(failure) => rows.row("fail", "bucket conditional write", &failure.chain()),
        }
    }
    let now = now_ms();
    rows.row("ok", "fleet", &format!("{} node lease(s) enumerated", leases.len()));
    let wanted = |node: &str| options.peers.is_empty() || options.peers.iter().any(|peer| peer == node);
    let mut expired = 0;
    for peer in leases.iter().filter(|peer| wanted(&peer.node)) {
        let subject = format!("peer {}", peer.node);
        if peer.is_live(now) {
            rows.row("ok", &subject, &format!("at {} (by its lease, not asked)", peer.addr));
        } else {
            expired += 1;
            rows.row("skip", &subject, "lease is expired");
        }
    }
    for missing in options.peers.iter().filter(|wanted| !leases.iter().any(|peer| peer.node == **wanted)) {
        rows.row("fail", &format!("peer {missing}"), "has no lease");
    }
    if expired > 0 {
        rows.row("ok", "fleet", &format!("skipped {expired} expired node lease(s)"));
    }
}

impl Rows {
    fn row(&mut self, verdict: &str, check: &str, detail: &str) {
        self.failed |= verdict == "fail";
        match self.surface {
            Surface::V0_6 if self.json => {
                output::line(&json!({ "verdict": verdict, "check": check, "detail": detail }).to_string());
            }
            Surface::V0_6 => output::line(&format!("{verdict} {check}: {detail}")),
            Surface::V0_3 if verdict == "fail" => output::note(&format!("{verdict} {check} {detail}")),
            Surface::V0_3 => output::line(&format!("{verdict} {check} {detail}")),
        }
    }
}
