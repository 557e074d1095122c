//! What a `celld deploy` job said. Pure.

use std::path::Path;

use scafo_core::{DeploymentVersion, Problem, ProblemCode, text};
use serde::Deserialize;

/// Longest text of a failure on a deploy's record, in bytes: a bundler's report of a few errors with their code frames.
pub(crate) const DETAIL_BYTES: usize = 3072;

/// The row with the version, in every release (celld contract 2.6).
const ROW: &str = "Current Version ID:";

#[derive(Deserialize)]
struct Summary {
    version: DeploymentVersion,
    #[serde(default)]
    dry_run: bool,
}

/// The version that a job with exit code 0 published, from its standard output: the object of `--json`, or the one row.
///
/// # Errors
/// `publish-failed` when the output names no version, or several.
pub(crate) fn published(stdout: &[u8]) -> Result<DeploymentVersion, Problem> {
    let text = String::from_utf8_lossy(stdout);
    if let Ok(result) = serde_json::from_str::<Summary>(text.trim()) {
        if result.dry_run {
            return Err(unclear("wrote nothing (a dry run)"));
        }
        return Ok(result.version);
    }
    let mut versions = text.lines().filter_map(|line| row(line.trim()));
    match (versions.next(), versions.next()) {
        (Some(version), None) => Ok(version),
        (Some(_), Some(_)) => Err(unclear("named more than one version")),
        (None, _) => Err(unclear("named no version")),
    }
}

fn row(line: &str) -> Option<DeploymentVersion> {
    let rest = line.strip_prefix(ROW)?.trim_start();
    // A dry run says so behind the id; that is nothing published.
    if rest.contains(char::is_whitespace) {
        return None;
    }
    rest.parse().ok()
}

fn unclear(what: &str) -> Problem {
    Problem::new(
        ProblemCode::PublishFailed,
        format!("`celld deploy` ended well but {what}; is this a version of celld that scafo knows?"),
    )
}

/// How a job ended badly, for people: the end of its standard error, without colours, without paths of this machine, bounded.
pub(crate) fn complaint(stderr: &[u8], roots: &[&Path]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let mut plain = without_controls(&text);
    for root in roots.iter().filter_map(|root| root.to_str()).filter(|root| root.len() > 1) {
        let root = root.trim_end_matches('/');
        plain = plain.replace(&format!("{root}/"), "").replace(root, ".");
    }
    let lines: Vec<&str> = plain.lines().map(str::trim_end).collect();
    let start = lines.iter().position(|line| !line.is_empty()).unwrap_or(lines.len());
    let end = lines.iter().rposition(|line| !line.is_empty()).map_or(start, |last| last + 1);
    let mut kept = Vec::new();
    let mut bytes = 0;
    for line in lines[start..end].iter().rev() {
        bytes += line.len() + 1;
        if bytes > DETAIL_BYTES {
            break;
        }
        kept.push(*line);
    }
    kept.reverse();
    if kept.is_empty() {
        lines[start..end].last().map_or("", |line| text::tail(line, DETAIL_BYTES)).to_owned()
    } else {
        kept.join("\n")
    }
}

/// Leaves out escape sequences (ECMA-48 CSI) and every control character but line ends and tabs.
fn without_controls(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        if character == '\u{1b}' {
            if characters.next_if_eq(&'[').is_some() {
                // Parameters and intermediates, then one final byte.
                while characters.next_if(|c| !('\u{40}'..='\u{7e}').contains(c)).is_some() {}
                characters.next();
            }
        } else if character == '\n' || character == '\t' || !character.is_control() {
            plain.push(character);
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_from_either_form() {
        for good in [
            r#"{"worker":"shop","version":"0123456789abcdef","location":"s3://b/p","dry_run":false}"#,
            "Current Version ID: 0123456789abcdef\n",
            " celld 0.3.0\n-----\nUploaded shop\n  Current Version ID: 0123456789abcdef\nRestart the nodes.\n",
        ] {
            assert_eq!(published(good.as_bytes()).unwrap().as_str(), "0123456789abcdef", "{good}");
        }
    }

    #[test]
    fn what_names_no_version_or_two_is_no_publication() {
        for bad in [
            "",
            "Current Version ID: 0123456789abcdef (dry run; nothing written)",
            r#"{"version":"0123456789abcdef","dry_run":true}"#,
            "Current Version ID: a\nCurrent Version ID: b",
            "Current Version ID: ../../etc",
            r#"{"version":"../x"}"#,
        ] {
            assert_eq!(published(bad.as_bytes()).unwrap_err().code, ProblemCode::PublishFailed, "{bad}");
        }
    }

    #[test]
    fn a_complaint_has_the_bundlers_words_and_no_paths_of_this_machine() {
        let stderr =
            "\n\u{1b}[31m✘ [ERROR] Expected \";\"\u{1b}[0m\r\n\n    /var/lib/scafo/stage/x/tree/src/index.js:3:7:\n";
        let root = Path::new("/var/lib/scafo/stage/x/tree");
        let text = complaint(stderr.as_bytes(), &[root, Path::new("/var/lib/scafo"), Path::new("/")]);
        assert_eq!(text, "✘ [ERROR] Expected \";\"\n\n    src/index.js:3:7:");
    }

    #[test]
    fn a_complaint_is_bounded_and_keeps_its_end() {
        let long: String = (0..2000).map(|line| format!("line {line}\n")).collect();
        let text = complaint(long.as_bytes(), &[]);
        assert!(text.len() <= DETAIL_BYTES && text.ends_with("line 1999") && text.starts_with("line "));
        let one = complaint("ä".repeat(9000).as_bytes(), &[]);
        assert!(one.len() <= DETAIL_BYTES && one.len() > DETAIL_BYTES - 4);
        assert_eq!(complaint(b"\xff\x00 \n", &[]), "\u{fffd}");
    }
}
