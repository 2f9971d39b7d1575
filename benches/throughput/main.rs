//! What the protection costs, in requests per second: real servers over loopback, closed-loop clients, a durable
//! PostgreSQL of this run's own, and every way to write the same endpoint in turn, in the same run.
//!
//! ```sh
//! cargo bench --bench throughput                       # under two minutes
//! cargo bench --bench throughput -- --full             # a quarter of an hour
//! cargo bench --bench throughput -- --only replays     # scenarios whose name holds this; nothing is written
//! ```
//!
//! Each answer is checked, and so is the number of executions: a variant that answers wrongly ends the run.
//!
//! Pools have sqlx's defaults. It asks a connection for a sign of life when it lends it and when it takes it back, so
//! every variant has two round trips more for each connection it borrows than its statements say, one of them while
//! the client waits. With `REDIS_URL`, the peer's Redis store takes part.

#![allow(clippy::expect_used)] // A benchmark that fails should stop.

mod arguments;
mod chart;
mod client;
mod counters;
mod database;
mod measure;
mod proxy;
mod report;
mod scenario;
mod site;
mod statistics;
mod storm;
mod variants;
mod work;

use std::{error::Error, process::ExitCode, time::Duration};

use indicatif::{ProgressBar, ProgressStyle};

use self::{
    arguments::Arguments,
    database::{CONNECTIONS, Databases},
    measure::Pace,
    report::{Machine, Report},
    scenario::{COUNTED, SCENARIOS, STORM},
    variants::Variant,
};

const SHORT: Pace = Pace {
    rounds: 7,
    slot: Duration::from_millis(160),
    warm_up: Duration::from_millis(100),
    duplicates: 200,
    storm_rounds: 2,
};

const FULL: Pace = Pace {
    rounds: 5,
    slot: Duration::from_secs(1),
    warm_up: Duration::from_millis(500),
    duplicates: 1_000,
    storm_rounds: 3,
};

fn main() -> ExitCode {
    let arguments = match Arguments::parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    match runtime.block_on(run(&arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let pace = if arguments.full { FULL } else { SHORT };
    let redis = std::env::var("REDIS_URL").is_ok();
    let left_out =
        if redis { Vec::new() } else { vec![format!("{}: REDIS_URL is not set", Variant::PeerInRedis.name())] };
    let there = |variants: &[Variant]| -> Vec<Variant> {
        variants.iter().copied().filter(|variant| redis || *variant != Variant::PeerInRedis).collect()
    };
    let scenarios: Vec<_> = SCENARIOS.iter().filter(|scenario| arguments.wants(scenario.name)).collect();
    let storms = if arguments.wants("storm") { there(STORM) } else { Vec::new() };
    let counted = if arguments.wants("counters") { there(COUNTED) } else { Vec::new() };
    if scenarios.is_empty() && storms.is_empty() && counted.is_empty() {
        let names: Vec<_> = SCENARIOS.iter().map(|scenario| scenario.name).chain(["storm", "counters"]).collect();
        return Err(format!("no scenario has that in its name; there are\n  {}", names.join("\n  ")).into());
    }
    let mut databases = Databases::start().await?;
    let machine = machine(arguments, pace, &databases);
    println!("{}", machine.line());
    for variant in &left_out {
        println!("left out: {variant}");
    }

    let slots: usize = scenarios.iter().map(|scenario| there(scenario.variants).len() * (pace.rounds + 1)).sum();
    // Hidden where nobody looks: it draws on a terminal only.
    let progress = ProgressBar::new((slots + storms.len() * pace.storm_rounds) as u64)
        .with_style(ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed}, {eta} to go; {msg}")?);

    let counts = counters::count(&counted, &databases).await?;
    if !counts.is_empty() {
        progress.suspend(|| println!("{}", report::counts_table(&counts)));
    }
    let mut measured = Vec::new();
    for scenario in scenarios {
        let variants = there(scenario.variants);
        let rows = measure::measure(scenario, &variants, &mut databases, pace, &progress).await?;
        let scenario = report::Scenario { name: scenario.name, rows };
        progress.suspend(|| println!("{}", scenario.table()));
        measured.push(scenario);
    }
    let storms = storm::storms(&storms, &mut databases, pace, &progress).await?;
    progress.finish_and_clear();
    if !storms.is_empty() {
        println!("{}", report::storm_table(&storms));
    }

    if arguments.only.is_some() {
        println!("\nnothing is written: this was a part");
        return Ok(());
    }
    let report = Report { machine, scenarios: measured, storms, counts, left_out };
    report.write()?;
    chart::draw(&report, &report::results().join("throughput.svg"))?;
    chart::draw_summary(&report, &report::results().join("summary.svg"))?;
    println!("\nwritten: benches/results/throughput.json, throughput.svg and summary.svg");
    Ok(())
}

fn machine(arguments: &Arguments, pace: Pace, databases: &Databases) -> Machine {
    let (direct, delayed) = databases.round_trips;
    Machine {
        cores: report::cores(),
        load_before: report::load(),
        postgresql: databases.version.clone(),
        pool_connections: CONNECTIONS,
        mode: if arguments.full { "full" } else { "short" },
        rounds: pace.rounds,
        slot_ms: pace.slot.as_secs_f64() * 1_000.0,
        round_trip_ms: direct.as_secs_f64() * 1_000.0,
        delayed_round_trip_ms: delayed.as_secs_f64() * 1_000.0,
    }
}
