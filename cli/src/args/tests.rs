use clap::CommandFactory as _;
use scafo_core::ApplicationName;

use super::*;

fn parse(line: &str) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(line.split_whitespace())
}

#[test]
fn the_command_line_is_well_formed() {
    Cli::command().debug_assert();
}

#[test]
fn a_deploy_takes_its_directory_and_what_is_asked_for() {
    let cli = parse("scafo deploy shop --app shop-eu --replicas all --selector a=b --selector c=d=e --json").unwrap();
    assert!(cli.json);
    let Command::Deploy(deploy) = cli.command else { panic!("a deploy") };
    assert_eq!(deploy.dir, PathBuf::from("shop"));
    assert_eq!(deploy.app.as_ref().map(ApplicationName::as_str), Some("shop-eu"));
    assert_eq!(deploy.replicas, Some(Replicas::All));
    let selector = deploy.node_selector().unwrap();
    assert_eq!(selector["c"], "d=e");
    assert!(
        parse("scafo deploy").is_ok_and(|cli| matches!(cli.command, Command::Deploy(d) if d.dir.as_os_str() == "."))
    );
}

#[test]
fn a_trust_rule_takes_many_subjects_and_the_usual_audience() {
    let line = "scafo trust set shop --issuer https://ci.example --subject repo:a/b:* repo:a/c:* --subject x";
    let Command::Trust(TrustCommand::Set(set)) = parse(line).unwrap().command else { panic!("a rule") };
    assert_eq!(set.subjects, ["repo:a/b:*", "repo:a/c:*", "x"]);
    assert_eq!((set.issuer.as_str(), set.audience.as_str()), ("https://ci.example", "scafo"));
}

#[test]
fn what_is_wrong_on_the_command_line_is_usage_and_exits_2() {
    for bad in [
        "scafo",
        "scafo nothing",
        "scafo deploy --replicas 0",
        "scafo deploy --replicas -1",
        "scafo deploy --app Shop",
        "scafo deploy --var =x",
        "scafo deploy --var x",
        "scafo deploy a b",
        "scafo status --url ftp://node",
        "scafo status --url http://a --context b",
        "scafo status --state-dir a --context b",
        "scafo status --context a/b",
        "scafo metrics --since soon",
        "scafo metrics --since 0",
        "scafo metrics --files 0",
        "scafo metrics --bucket b --state-dir s",
        "scafo traces --trace xyz",
        "scafo app",
        "scafo app show",
        "scafo app show Shop",
        "scafo app selector shop",
        "scafo app selector shop a=b --any",
        "scafo app labels shop",
        "scafo app labels shop a=b --clear",
        "scafo app replicas shop 0",
        "scafo app domain add shop",
        "scafo app domain add shop not_a_host.example",
        "scafo app domain add shop *.shop.example",
        "scafo node drain",
        "scafo node drain a --timeout soon",
        "scafo node remove a b",
        "scafo operator add --applications shop",
        "scafo operator add --key-out f",
        "scafo operator add --applications shop --key-out f --public-key g",
        "scafo operator add --applications shop --key-out f --role root",
        "scafo operator revoke",
        "scafo trust set shop --issuer https://ci.example",
        "scafo trust set shop --subject x",
        "scafo trust set shop --issuer http://ci.example --subject x",
        "scafo context add a --url ftp://x",
        "scafo context add a",
        "scafo context use",
        "scafo completions tcsh",
    ] {
        assert_eq!(parse(bad).unwrap_err().exit_code(), 2, "{bad}");
    }
}

/// What every page ends with. It stands on the pages of commands that have it, once in this reference.
const COMMON: &str = "      --json\n";

/// The pages of a command and of those below it, in the order of the help.
fn pages(command: &mut clap::Command, path: &str, out: &mut String) {
    let page = command.render_long_help().to_string();
    // The settings of the node are left out: their table is the configuration's, and its tests'.
    let page = page.split("Settings of the node:").next().unwrap_or_default();
    let is_whole = matches!(path, "scafo" | "scafo status" | "scafo fleet freeze");
    let page = if is_whole { page } else { page.split(COMMON).next().unwrap_or_default() };
    out.push_str(&format!("===== {path}\n{}\n\n", page.trim_end().trim_end_matches("Options:").trim_end()));
    for below in command.get_subcommands_mut().filter(|below| below.get_name() != "help") {
        let path = format!("{path} {}", below.get_name());
        pages(below, &path, out);
    }
}

#[test]
fn help_is_the_reference() {
    let mut command = Cli::command();
    command.build();
    let mut reference = String::new();
    pages(&mut command, "scafo", &mut reference);
    insta::assert_snapshot!(reference);
}
