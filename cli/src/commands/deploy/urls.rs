//! Where an application answers, as one would type it.

use reqwest::Url;
use scafo_core::ApplicationName;
use scafo_core::domain::{Host, platform_host};

/// Under each platform domain, through the ingress of a node on this machine when it has one of ours. With another ingress the
/// scheme and port are that one's; plain HTTP is what it has at least.
pub(super) fn local(application: &ApplicationName, domains: &[Host], ingress: Option<&str>) -> Vec<String> {
    let base = ingress.and_then(|text| Url::parse(text).ok());
    let scheme = base.as_ref().map_or("http", Url::scheme).to_owned();
    // The parser leaves out the port that the scheme implies.
    let port = base.and_then(|base| base.port()).map(|port| format!(":{port}")).unwrap_or_default();
    let url = |domain| format!("{scheme}://{}{port}/", platform_host(application, domain));
    domains.iter().map(url).collect()
}

/// Under each platform domain of a fleet elsewhere: its API came through its ingress, so what that speaks is spoken there too.
pub(super) fn remote(application: &ApplicationName, domains: &[Host], https: bool) -> Vec<String> {
    let scheme = if https { "https" } else { "http" };
    domains.iter().map(|domain| format!("{scheme}://{}/", platform_host(application, domain))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_the_ingress_port_unless_the_scheme_implies_it() {
        let shop: ApplicationName = "shop".parse().unwrap();
        let domains: Vec<Host> = vec!["dev.localhost".parse().unwrap()];
        for (ingress, url) in [
            (Some("http://127.0.0.1:8080"), "http://shop.dev.localhost:8080/"),
            (Some("http://0.0.0.0:80"), "http://shop.dev.localhost/"),
            (Some("http://[::1]:8080"), "http://shop.dev.localhost:8080/"),
            (None, "http://shop.dev.localhost/"),
        ] {
            assert_eq!(local(&shop, &domains, ingress), [url]);
        }
        assert_eq!(remote(&shop, &domains, true), ["https://shop.dev.localhost/"]);
        assert!(local(&shop, &[], Some("http://127.0.0.1:1")).is_empty());
    }
}
