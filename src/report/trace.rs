//! The timeline of a step as a file for Chrome's `about:tracing` and Perfetto.
//!
//! The format is the JSON of "Trace Event Format" (Google, 2016): complete events (`ph: "X"`) with times in
//! microseconds, a process for each pipeline rank and a thread for each of its lanes.

use autoshard_passes::predict::trace::{Event, Lane};
use serde_json::{json, Value};
use std::collections::BTreeSet;

/// Microseconds of a second.
const MICRO: f64 = 1e6;

/// The file's object: names of ranks and lanes, then the events in order of their start.
pub fn json(events: &[Event]) -> Value {
    let lanes: BTreeSet<(u32, Lane)> = events.iter().map(|e| (e.rank, e.lane)).collect();
    let ranks: BTreeSet<u32> = lanes.iter().map(|(rank, _)| *rank).collect();
    let named = |what: &str, rank: u32, thread: usize, name: String| json!({"ph": "M", "name": what, "pid": rank, "tid": thread, "args": {"name": name}});
    let processes = ranks.iter().map(|r| named("process_name", *r, 0, format!("pipeline rank {r}")));
    let threads = lanes.iter().map(|(r, lane)| named("thread_name", *r, thread(*lane), lane.name().to_string()));
    let mut ordered: Vec<&Event> = events.iter().collect();
    ordered.sort_by(|a, b| a.start.total_cmp(&b.start));
    let complete = ordered.iter().map(|e| {
        json!({
            "ph": "X", "name": e.name, "cat": e.lane.name(), "pid": e.rank, "tid": thread(e.lane),
            "ts": e.start * MICRO, "dur": e.seconds * MICRO
        })
    });
    let all: Vec<Value> = processes.chain(threads).chain(complete).collect();
    json!({"traceEvents": all, "displayTimeUnit": "ms"})
}

/// Viewers show threads in this order.
fn thread(lane: Lane) -> usize {
    match lane {
        Lane::Compute => 0,
        Lane::Data => 1,
        Lane::Replicas => 2,
        Lane::Forward => 3,
        Lane::Backward => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_in_microseconds_under_named_lanes() {
        let event = |rank, lane, start| Event { rank, lane, name: "F0".into(), start, seconds: 0.002 };
        let v = json(&[event(1, Lane::Compute, 0.5), event(0, Lane::Forward, 0.25)]);
        let all = v["traceEvents"].as_array().unwrap();
        assert_eq!(all.len(), 2 + 2 + 2);
        assert_eq!(
            all[0],
            json!({"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": "pipeline rank 0"}})
        );
        assert_eq!(all[2]["args"]["name"], "send activations");
        assert_eq!((&all[4]["ts"], &all[4]["dur"], &all[4]["tid"]), (&json!(250_000.0), &json!(2000.0), &json!(3)));
        assert_eq!((&all[5]["ph"], &all[5]["pid"]), (&json!("X"), &json!(1)));
    }
}
