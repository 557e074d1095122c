//! `scafo context`: named installations.

use std::path::Path;

use serde_json::json;

use crate::args::{ContextAddArgs, ContextCommand, ContextNameArgs};
use crate::contexts::{Context, Contexts};
use crate::error::{Failure, Outcome};
use crate::keys::{self, Signer, Whose};
use crate::output::{Output, table};

/// `scafo context …`
pub(super) fn run(command: ContextCommand, output: Output) -> Outcome {
    match command {
        ContextCommand::Add(args) => add(args, output),
        ContextCommand::List => list(output),
        ContextCommand::Use(args) => choose(&args, output),
        ContextCommand::Remove(args) => remove(&args, output),
    }
}

fn add(args: ContextAddArgs, output: Output) -> Outcome {
    let key = args.key.as_deref().map(std::path::absolute).transpose();
    let mut key = key.map_err(|error| Failure::because("the working directory is gone", &error))?;
    if let (None, Some(id)) = (&key, &args.operator) {
        // Where it is now: its id changes with a rotation, its file does not.
        key = keys::directory().and_then(|directory| keys::find(&directory, id));
    }
    if let Some(path) = &key {
        usable(path, &args)?;
    }
    let context = Context { url: args.url, key, operator: args.operator };
    let only = Contexts::change(|contexts| {
        contexts.contexts.insert(args.name.clone(), context.clone());
        if contexts.contexts.len() == 1 {
            contexts.current = Some(args.name.clone());
        }
        Ok(contexts.current.as_ref() == Some(&args.name))
    })?;
    output.data(&json!({ "name": args.name, "context": context, "current": only }), String::new)?;
    let how = if only {
        "it is the current one".to_owned()
    } else {
        format!("`scafo context use {}` makes it the current one", args.name)
    };
    output.say(&format!("{} is {}; {how}", args.name, context.url));
    Ok(())
}

/// A key that cannot be used is better found now than by the first command.
fn usable(path: &Path, args: &ContextAddArgs) -> Outcome {
    Signer::read(path, &args.operator.clone().map_or(Whose::Unsaid, Whose::Given)).map(drop)
}

fn list(output: Output) -> Outcome {
    let contexts = Contexts::load()?;
    output.data(&contexts, || render(&contexts))?;
    if contexts.contexts.is_empty() {
        output.say("no contexts yet; `scafo context add NAME --url URL` makes one");
    }
    Ok(())
}

fn choose(args: &ContextNameArgs, output: Output) -> Outcome {
    let url = Contexts::change(|contexts| {
        let url = contexts.get(&args.name)?.url.clone();
        contexts.current = Some(args.name.clone());
        Ok(url)
    })?;
    output.data(&json!({ "current": args.name }), String::new)?;
    output.say(&format!("commands go to {url} where nothing else names a node"));
    Ok(())
}

fn remove(args: &ContextNameArgs, output: Output) -> Outcome {
    let key = Contexts::change(|contexts| {
        let key = contexts.get(&args.name)?.key.clone();
        contexts.contexts.remove(&args.name);
        contexts.current = contexts.current.take().filter(|current| *current != args.name);
        Ok(key)
    })?;
    output.data(&json!({ "removed": args.name }), String::new)?;
    if let Some(key) = key {
        output.say(&format!("the key stays in {}", key.display()));
    }
    Ok(())
}

fn render(contexts: &Contexts) -> String {
    let rows: Vec<Vec<String>> = contexts
        .contexts
        .iter()
        .map(|(name, context)| {
            let mark = if contexts.current.as_ref() == Some(name) { " *" } else { "" };
            vec![
                format!("{name}{mark}"),
                context.url.to_string(),
                context.operator.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string),
                context.key.as_ref().map_or_else(|| "-".to_owned(), |path| path.display().to_string()),
            ]
        })
        .collect();
    if rows.is_empty() { String::new() } else { table(&["NAME", "URL", "OPERATOR", "KEY"], &rows) }
}
