//! The moment between "the nodes serve it" and "its URL answers": our ingress pulls the document, and has to have done so once
//! more. Asking the application itself would be a request that nobody made, so the document and the ingress's own count of hosts
//! are compared instead.

use std::time::Duration;

use scafo_core::ApplicationName;
use scafo_core::domain::platform_host;
use scafo_core::routing::FleetRouting;
use scafo_supervisor::Ready;
use tokio::time::{Instant, sleep, timeout};

use crate::client::Client;
use crate::commands::routes::read_token;

/// How long it is waited: two polls of an ingress at its usual interval of 5 s. Then the URL is shown all the same.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(25);

/// Waits until the node's own ingress knows the application's hosts. Best effort: whatever cannot be found out ends the wait.
pub(super) async fn wait(client: &Client, node: &Ready, application: &ApplicationName) {
    let Some(ingress) = &node.ingress else { return };
    let Ok(token) = read_token(&node.ingress_token_file) else { return };
    let begun = Instant::now();
    let knows = async {
        while let Some(false) = known(client, node, ingress, &token, application).await {
            sleep(PAUSE).await;
        }
    };
    // Either way there is nothing more to do about it.
    let _ = timeout(PATIENCE.saturating_sub(begun.elapsed()), knows).await;
}

/// Whether document and ingress name the same number of hosts, the application's among them; `None` when one does not say.
async fn known(
    client: &Client,
    node: &Ready,
    ingress: &str,
    token: &str,
    application: &ApplicationName,
) -> Option<bool> {
    let document = client.get_with("/v1/ingress/routes", token).await.ok()?;
    let routing: FleetRouting = serde_json::from_slice(&document).ok()?;
    let named = |host: &str| routing.routes.iter().any(|route| route.host == host);
    if !node.platform_domains.iter().all(|domain| named(&platform_host(application, domain))) {
        return Some(false);
    }
    let hosts = routing.routes.len() + routing.api.as_ref().map_or(0, |api| api.hosts.len());
    let heard = client.ingress_hosts(ingress, token).await?;
    Some(heard == hosts)
}
