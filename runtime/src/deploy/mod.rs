//! `deploy`: build a project and publish it.
//!
//! Building is pure but for reading files and running esbuild; publishing writes in the order of `publish`; `report` says
//! what happened. Nothing is visible to a node before the fleet's pointer moves, which is the last write.

mod assets;
mod boundary;
mod build;
mod bundle;
mod config;
mod confine;
mod publish;
mod report;

pub(crate) use confine::exec as exec_bundler;

use std::time::Instant;

use crate::{
    Failure,
    args::{DeployOptions, StoreOptions},
    bucket,
    environment::{Environment, Surface},
    failure::{Context, Outcome},
    hooks::DeployHook,
};

/// Builds and, unless it is a dry run, publishes.
///
/// # Errors
/// The configuration, esbuild, the bucket, a lost race, or a write of which nobody knows the end.
pub(crate) fn run(
    store: &StoreOptions,
    options: &DeployOptions,
    environment: &Environment,
    surface: Surface,
) -> Outcome<()> {
    let hook = DeployHook::of(environment)?;
    let fleet = if options.dry_run { None } else { bucket::open(store, environment)? };
    if fleet.is_none() && !options.dry_run {
        return Err(Failure::new("deploy needs a bucket: give --bucket or set CELLD_BUCKET, or try --dry-run"));
    }
    let started = Instant::now();
    let project = config::read(&config::locate(options.project.as_deref())?)?;
    let built = build::build(&project, environment)?;
    let report = report::Report { surface, json: options.json, built: &built };
    report.built(started.elapsed());
    let Some(fleet) = fleet else {
        report.dry_run();
        return Ok(());
    };
    let uploading = Instant::now();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context(|| "start the runtime".into())?;
    runtime.block_on(publish::publish(&*fleet.bucket, &fleet.name, &built, hook))?;
    report.uploaded(uploading.elapsed(), &fleet.name);
    Ok(())
}
