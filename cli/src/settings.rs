//! The settings of a node on the command line: one flag for each key of the configuration, made from its table.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use scafo_core::config::{self, Config, DEFAULT_FILE, File, KEYS, Key, Kind, Layers, Origin};

use crate::env;
use crate::error::{Failure, Outcome};

/// Longest configuration file that is read; one with every key and a thousand labels has about 100 KiB.
const MAX_FILE_BYTES: u64 = 4 * 1024 * 1024;
const HEADING: &str = "Settings of the node";
const CONFIG: &str = "config";
const SET: &str = "set";
/// The key whose flag is given once for each item.
const TOKEN: &str = "ingress.token";

/// What the flags say. Key → value as in the configuration.
#[derive(Debug, Clone, Default)]
pub(crate) struct ConfigArgs {
    file: Option<PathBuf>,
    flags: BTreeMap<String, String>,
    /// A flag that names one token each time was given several at once.
    tokens_with_commas: bool,
}

/// Whether the configuration file is read where it usually is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UsualFile {
    /// When it is there.
    Read,
    /// Only a file that a flag names.
    Ignore,
}

/// A key with the text that clap shows for it.
struct Flag {
    key: &'static Key,
    long: String,
    help: String,
    /// `no-…` of a key that is on or off.
    opposite: Option<String>,
}

static FLAGS: LazyLock<Vec<Flag>> = LazyLock::new(|| {
    let flag = |key: &'static Key| {
        let default = if key.default.is_empty() { String::new() } else { format!(" [default: {}]", key.default) };
        let opposite = (key.kind == Kind::Bool).then(|| format!("no-{}", key.flag()));
        Flag { key, long: key.flag(), help: format!("{}{default}", key.help), opposite }
    };
    KEYS.iter().map(flag).collect()
});

impl clap::Args for ConfigArgs {
    fn augment_args(command: Command) -> Command {
        let file = Arg::new(CONFIG)
            .long(CONFIG)
            .value_name("FILE")
            .value_parser(value_parser!(PathBuf))
            .help("The configuration file [default: /etc/scafo/scafo.toml when it is there, none for `scafo dev`]");
        let set = Arg::new(SET)
            .long(SET)
            .value_name("KEY=VALUE")
            .value_parser(crate::args::parse_pair)
            .action(ArgAction::Append)
            .help("Any key as it is written in the file, for example deploy.jobs=4; may be given several times");
        let flags = FLAGS.iter().flat_map(|flag| [Some(positive(flag)), flag.opposite.as_deref().map(negative)]);
        command.args([file, set].into_iter().chain(flags.flatten()).map(|arg| arg.help_heading(HEADING)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for ConfigArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut args = Self { file: matches.get_one::<PathBuf>(CONFIG).cloned(), ..Self::default() };
        for (key, value) in matches.get_many::<(String, String)>(SET).into_iter().flatten() {
            args.flags.insert(key.clone(), value.clone());
        }
        for flag in FLAGS.iter() {
            // A flag of its own is more to the point than `--set`.
            if let Some(values) = matches.get_many::<String>(flag.key.name) {
                let values: Vec<&str> = values.map(String::as_str).collect();
                args.tokens_with_commas |= flag.key.name == TOKEN && values.iter().any(|value| value.contains(','));
                args.flags.insert(flag.key.name.to_owned(), values.join(","));
            }
            if flag.opposite.as_deref().is_some_and(|opposite| matches.get_flag(opposite)) {
                args.flags.insert(flag.key.name.to_owned(), "false".to_owned());
            }
        }
        Ok(args)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl ConfigArgs {
    /// The configuration: flags over environment over file over `defaults` over the table's own.
    ///
    /// # Errors
    /// When the file cannot be read or a setting cannot be used.
    pub(crate) fn resolve(self, defaults: &BTreeMap<String, String>, usual: UsualFile) -> Outcome<Config> {
        // Judged here and not while the line is read: what is wrong there is quoted, and this is a secret.
        if self.tokens_with_commas {
            return Err(Failure::usage("--ingress-token takes one token each time, and a token has no comma")
                .hint("give the flag once for each token"));
        }
        let file = self.file(usual)?;
        let environment = env::all();
        let layers = Layers {
            flags: &self.flags,
            environment: &environment,
            file: file.as_ref().map(|(path, text)| File { path, text }),
            defaults,
        };
        let mut config = Config::resolve(&layers).map_err(|error| refused(&error))?;
        config.state_dir = absolute(&config.state_dir)?;
        config.runtime_dir = absolute(&config.runtime_dir)?;
        Ok(config)
    }

    fn file(&self, usual: UsualFile) -> Outcome<Option<(String, String)>> {
        let path = match (&self.file, usual) {
            (Some(path), _) => path.as_path(),
            (None, UsualFile::Read) if Path::new(DEFAULT_FILE).exists() => Path::new(DEFAULT_FILE),
            (None, _) => return Ok(None),
        };
        let text = read_bounded(path)
            .map_err(|error| Failure::because(format!("cannot read the configuration {}", path.display()), &error))?;
        Ok(Some((path.display().to_string(), text)))
    }
}

/// The flag that sets a key. One that is on or off needs no value to be on.
fn positive(flag: &'static Flag) -> Arg {
    let arg = Arg::new(flag.key.name).long(flag.long.as_str()).help(flag.help.as_str());
    let arg = arg.value_name(value_name(flag.key.kind)).action(action(flag.key.kind));
    match &flag.opposite {
        Some(opposite) => {
            arg.num_args(0..=1).require_equals(true).default_missing_value("true").overrides_with(opposite.as_str())
        }
        // `--ingress-listen` is what one looks for beside `--api-listen`.
        None if flag.key.name == "ingressd.listen" => arg.visible_alias("ingress-listen"),
        None => arg,
    }
}

/// The flag that turns a key off. The last one on the line counts.
fn negative(opposite: &'static str) -> Arg {
    Arg::new(opposite).long(opposite).action(ArgAction::SetTrue).help("The opposite")
}

/// A bad flag is a wrong command line; a bad file or environment is a failure.
fn refused(error: &config::Error) -> Failure {
    let from_flag = match error {
        config::Error::Unknown { origin, .. } | config::Error::Value { origin, .. } => *origin == Origin::Flag,
        config::Error::File { .. } | config::Error::Conflict(_) => false,
    };
    let failure = if from_flag { Failure::usage(error.to_string()) } else { Failure::new(error.to_string()) };
    failure.hint("every setting is described by `scafo sail --help`")
}

fn read_bounded(path: &Path) -> std::io::Result<String> {
    use std::io::Read as _;
    let mut text = String::new();
    std::fs::File::open(path)?.take(MAX_FILE_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

/// The path whatever the working directory of a child is.
fn absolute(path: &Path) -> Outcome<PathBuf> {
    std::path::absolute(path).map_err(|error| Failure::because("the working directory is gone", &error))
}

const fn value_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Text => "TEXT",
        Kind::Path => "PATH",
        Kind::Bool => "BOOL",
        Kind::Count => "N",
        Kind::Size => "SIZE",
        Kind::Duration => "DURATION",
        Kind::Range => "FIRST-LAST",
        Kind::List => "LIST",
        Kind::Map => "K=V,…",
    }
}

const fn action(kind: Kind) -> ArgAction {
    match kind {
        Kind::List | Kind::Map => ArgAction::Append,
        Kind::Text | Kind::Path | Kind::Bool | Kind::Count | Kind::Size | Kind::Duration | Kind::Range => {
            ArgAction::Set
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Cli, Command as Commands};

    fn sail(line: &str) -> ConfigArgs {
        let cli = Cli::try_parse_from(["scafo", "sail"].into_iter().chain(line.split_whitespace())).unwrap();
        let Commands::Sail(args) = cli.command else { panic!("sail") };
        args.config
    }

    #[test]
    fn every_key_has_a_flag_and_lists_may_repeat() {
        let args = sail("--node-id a --ingress-token one --ingress-token two --set deploy.jobs=4 --deploy-queue 3");
        let expected = [("deploy.jobs", "4"), ("deploy.queue", "3"), ("ingress.token", "one,two"), ("node.id", "a")];
        let flags: Vec<(&str, &str)> = args.flags.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(flags, expected);
    }

    #[test]
    fn what_is_on_or_off_has_a_flag_for_each_and_the_last_one_counts() {
        for (line, value) in [
            ("--api-public", Some("true")),
            ("--no-api-public", Some("false")),
            ("--api-public=false", Some("false")),
            ("--api-public --no-api-public", Some("false")),
            ("--no-api-public --api-public", Some("true")),
            ("--no-bucket-path-style", None),
        ] {
            assert_eq!(sail(line).flags.get("api.public").map(String::as_str), value, "{line}");
        }
        let config = sail("--no-api-public").resolve(&BTreeMap::new(), UsualFile::Ignore).unwrap();
        assert!(!config.api.public);
    }

    #[test]
    fn each_ingress_token_is_given_by_a_flag_of_its_own() {
        let config = sail("--ingress-token first --ingress-token second");
        let config = config.resolve(&BTreeMap::new(), UsualFile::Ignore).unwrap();
        let tokens: Vec<&str> = config.ingress.tokens.iter().map(scafo_core::settings::Secret::expose).collect();
        assert_eq!(tokens, ["first", "second"]);
        for bad in ["--ingress-token hunter2,hunter3", "--ingress-token first --ingress-token=", "--ingress-token="] {
            let refused = sail(bad).resolve(&BTreeMap::new(), UsualFile::Ignore).err().unwrap();
            assert!(matches!(&refused, Failure::Usage(report) if !report.message().contains("hunter")), "{bad}");
        }
    }

    #[test]
    fn the_ingress_of_a_development_node_is_spelled_like_its_api() {
        assert_eq!(sail("--ingress-listen 127.0.0.1:0").flags["ingressd.listen"], "127.0.0.1:0");
    }

    #[test]
    fn an_unknown_key_is_usage_and_names_the_nearest() {
        let refused = sail("--set node.adress=1").resolve(&BTreeMap::new(), UsualFile::Ignore).err().unwrap();
        assert!(matches!(&refused, Failure::Usage(report) if report.message().contains("`node.address`")));
    }

    #[test]
    fn a_flag_wins_over_the_file_and_paths_become_absolute() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("scafo.toml");
        std::fs::write(&file, "stateDir = \"there\"\n[deploy]\njobs = 7\nqueue = 9\n").unwrap();
        let args = sail(&format!("--config {} --deploy-jobs 3", file.display()));
        let config = args.resolve(&BTreeMap::new(), UsualFile::Ignore).unwrap();
        assert_eq!((config.deploy_jobs, config.deploy.queue), (3, 9));
        assert!(config.state_dir.is_absolute() && config.state_dir.ends_with("there"));
    }

    #[test]
    fn the_packaged_configuration_is_accepted_as_it_is_and_with_every_example_in_force() {
        let packaged = include_str!("../../packaging/etc/scafo.toml");
        let is_setting = |line: &str| line.split_once(" = ").is_some_and(|(key, _)| !key.contains(' '));
        let in_force: String = packaged
            .lines()
            .map(|line| line.strip_prefix("# ").filter(|rest| is_setting(rest)).unwrap_or(line))
            .flat_map(|line| [line, "\n"])
            .collect();
        assert!(in_force.lines().filter(|line| is_setting(line)).count() > 15);
        let credentials = BTreeMap::from(
            ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"].map(|name| (name.to_owned(), "x".to_owned())),
        );
        for text in [packaged, &in_force] {
            let file = Some(File { path: "scafo.toml", text });
            let none = BTreeMap::new();
            let layers = Layers { flags: &none, environment: &credentials, file, defaults: &none };
            if let Err(error) = Config::resolve(&layers) {
                panic!("{error}");
            }
        }
    }
}
