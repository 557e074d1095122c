//! The reference of the configuration, `docs/configuration.md`, written from the table of keys.

use super::keys::{KEYS, Kind};

/// The page. A test holds the file in `docs/` to it.
pub fn reference() -> String {
    let mut page = String::from(HEAD);
    for key in KEYS {
        let default = if key.default.is_empty() { "none".to_owned() } else { format!("`{}`", key.default) };
        page.push_str(&format!(
            "| `{}` | `--{}` | `{}` | {} | {default} | {} |\n",
            key.name,
            key.flag(),
            key.environment(),
            spelled(key.kind),
            key.help
        ));
    }
    page.push_str(FOOT);
    page
}

const fn spelled(kind: Kind) -> &'static str {
    match kind {
        Kind::Text => "text",
        Kind::Path => "path",
        Kind::Bool => "`true`, `false`",
        Kind::Count => "number",
        Kind::Size => "bytes, `64MiB`",
        Kind::Duration => "`500ms`, `10s`, `5m`, `7d`",
        Kind::Range => "`FIRST-LAST`",
        Kind::List => "`A,B`",
        Kind::Map => "`K=V,K=V`",
    }
}

const HEAD: &str = "\
<!-- Written from the table in core/src/config/keys.rs: `SCAFO_UPDATE_DOCS=1 cargo test -p scafo-core` writes it again. -->

# Configuration

A flag wins over the environment, the environment over the file (`/etc/scafo/scafo.toml`, or `--config FILE`), the file over the
default. In the file a dot makes a table (`[node]`, then `address = \"10.83.0.1\"`), a list is an array and a map is a table. An
unknown key is refused by name. Credentials of the bucket come from `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and
`AWS_SESSION_TOKEN`.

| key | flag | environment | value | default | what it is for |
| --- | --- | --- | --- | --- | --- |
";

const FOOT: &str = "
`scafo dev` has defaults of its own for a local node: the state directory `./.scafo`, the platform domain `dev.localhost`, the API on
`127.0.0.1:7400` and the ingress on `127.0.0.1:8080`. Everything else holds for it too.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_in_docs_says_what_the_table_says() {
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/configuration.md");
        if std::env::var_os("SCAFO_UPDATE_DOCS").is_some() {
            std::fs::write(&page, reference()).unwrap();
        }
        let written = std::fs::read_to_string(&page).unwrap();
        assert_eq!(written, reference(), "run SCAFO_UPDATE_DOCS=1 cargo test -p scafo-core");
    }
}
