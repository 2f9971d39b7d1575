//! What asks no database: keys, fingerprints, the way past the layer, and replays from memory. At the end, what it
//! allocates.
//!
//! ```sh
//! cargo bench --bench pure                  # criterion's figures, the differences to a bare service, allocations
//! cargo bench --bench pure -- fingerprint   # criterion's figures of one group
//! ```
//!
//! The header parser is private: it is measured as part of two refusals, of a malformed key and of a well-formed one
//! that is nobody's. What captures an answer runs behind a claim only, so it is in `memory` and in the throughput.

#![allow(clippy::expect_used)] // A benchmark that fails should stop.

mod memory;
mod remembered;
mod services;

use std::{
    error::Error,
    hint::black_box,
    time::{Duration, Instant},
};

use axum::http::StatusCode;
use axum_idempotency::{Fingerprint, IdempotencyKey};
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput};

use self::services::{Call, Service, bare, layered};

const KEY: &str = "8e03978e-40d5-43e8-bc93-6894a57f9324";

fn main() -> Result<(), Box<dyn Error>> {
    // A pool, even one that never connects, asks for a runtime.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let entered = runtime.enter();
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    keys(&mut criterion);
    fingerprints(&mut criterion);
    calls(&mut criterion);
    drop(entered);
    remembered::replays(&runtime, &mut criterion)?;
    criterion.final_summary();

    let entered = runtime.enter();
    differences();
    drop(entered);
    memory::first_calls(&runtime)
}

fn keys(criterion: &mut Criterion) {
    criterion.bench_function("IdempotencyKey::new", |bencher| bencher.iter(|| IdempotencyKey::new(black_box(KEY))));
}

fn fingerprints(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("fingerprint");
    for bytes in [1 << 10, 100 << 10, 1 << 20] {
        let body = vec![b'x'; bytes];
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_with_input(BenchmarkId::from_parameter(bytes), &body, |bencher, body| {
            let head: [&[u8]; 5] = [b"POST", b"/charges", b"", b"application/json", b""];
            bencher.iter(|| Fingerprint::of(head.into_iter().chain([&black_box(body)[..]])));
        });
    }
}

fn calls(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("call");
    for call in Call::ALL {
        for (name, mut service) in [("bare", bare()), ("layer", layered(call))] {
            group.bench_function(BenchmarkId::new(call.name(), name), |bencher| {
                bencher.iter_batched(|| call.request(KEY), |request| service.call(request), BatchSize::SmallInput);
            });
        }
    }
}

/// Nanoseconds and allocations over the bare service, from batches in turn.
fn differences() {
    println!("{:<34} {:>9} {:>10} {:>11} {:>8}", "over the bare service", "ns", "spread", "allocations", "bytes");
    for call in Call::ALL {
        let (mut plain, mut with) = (bare(), layered(call));
        assert_eq!(with.call(call.request(KEY)), call.expected(), "{}", call.name());
        assert_eq!(plain.call(call.request(KEY)), StatusCode::OK);
        let mut times: Vec<_> =
            (0..200).map(|_| nanoseconds(&mut with, call) - nanoseconds(&mut plain, call)).collect();
        times.sort_by(f64::total_cmp);
        let [(more, more_bytes), (less, less_bytes)] = [allocations(&mut with, call), allocations(&mut plain, call)];
        println!(
            "{:<34} {:>9.0} {:>10} {:>11} {:>8}",
            call.name(),
            times[times.len() / 2],
            format!("{:.0}..{:.0}", times[times.len() / 20], times[times.len() * 19 / 20]),
            more - less,
            more_bytes - less_bytes
        );
    }
}

/// Per call, the requests having been made before.
fn nanoseconds(service: &mut Service, call: Call) -> f64 {
    const CALLS: u32 = 1_000;

    let requests: Vec<_> = (0..CALLS).map(|_| call.request(KEY)).collect();
    let began = Instant::now();
    for request in requests {
        black_box(service.call(request));
    }
    began.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
}

/// How many, and of how many bytes.
fn allocations(service: &mut Service, call: Call) -> (i64, i64) {
    let request = call.request(KEY);
    let counted = allocation_counter::measure(|| {
        service.call(request);
    });
    (i64::try_from(counted.count_total).unwrap_or(i64::MAX), i64::try_from(counted.bytes_total).unwrap_or(i64::MAX))
}
