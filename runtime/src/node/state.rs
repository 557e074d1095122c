//! `/state`: every key that celld has, zero where a stand-in has no such thing.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::{conductor::View, gate::Gate, sample::Sampler, status::Status};
use crate::environment::Surface;

/// Counts of things that a stand-in never has.
const ZERO: [&str; 9] = [
    "occupied",
    "evicting",
    "restoring",
    "activating",
    "activation_waiting",
    "capacity_waiting",
    "published",
    "publishes",
    "stops",
];

/// As [`ZERO`], since 0.4.
const ZERO_0_6: [&str; 9] = [
    "owned_cells",
    "quiescing",
    "releasing",
    "adopting",
    "handed_off",
    "handoff_failed",
    "rebalanced",
    "rebalance_failed",
    "remote_route_refreshes",
];

/// Makes the document.
pub(super) struct State {
    pub surface: Surface,
    /// `s3` or `memory`.
    pub ownership: &'static str,
    pub status: Arc<Status>,
    pub gate: Option<Arc<Gate>>,
    pub view: Arc<View>,
    pub sampler: Sampler,
}

impl State {
    pub(super) fn document(&self) -> Value {
        let load = self.sampler.load();
        let mut document = Map::new();
        document.insert("standin".into(), json!(true));
        document.insert("ownership".into(), json!(self.ownership));
        for name in ZERO {
            document.insert(name.into(), json!(0));
        }
        document.insert("phases".into(), json!({}));
        document.insert("shedding".into(), Value::Null);
        document.insert("rss_bytes".into(), json!(load.rss_bytes));
        document.insert("in_use_bytes".into(), json!(load.in_use_bytes));
        document.insert("residents".into(), json!([]));
        if self.surface == Surface::V0_6 {
            for name in ZERO_0_6 {
                document.insert(name.into(), json!(0));
            }
            for name in ["allocator", "libc_malloc"] {
                document.insert(name.into(), json!({}));
            }
            for name in ["cgroup_working_set_bytes", "cgroup_current_bytes"] {
                document.insert(name.into(), json!(load.rss_bytes));
            }
            document.insert("deployment".into(), self.deployment());
            document.insert("draining".into(), json!(self.status.is_draining()));
            document.insert("node_load".into(), json!(load));
        }
        Value::Object(document)
    }

    fn deployment(&self) -> Value {
        let draining: Vec<_> = self
            .view
            .draining()
            .into_iter()
            .map(|(generation, version)| json!({ "generation": generation, "version": version }))
            .collect();
        let current = self.gate.as_ref().and_then(|gate| gate.current());
        let Some(current) = current else { return Value::Null };
        json!({
            "version": current.version(),
            "prefix": current.deployment.pointer.prefix,
            "generation": current.number,
            "draining": draining,
            "swapping": self.view.swapping(),
            "cells": {},
            "isolates": 1,
        })
    }
}
