//! What was measured, as a table and as JSON.

use std::{error::Error, fmt::Write as _, fs, path::PathBuf, thread};

use serde::Serialize;

use crate::{counters::Counts, statistics::Spread, storm::Storm};

/// Everything that a run gave.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) scenarios: Vec<Scenario>,
    pub(crate) storms: Vec<Storm>,
    pub(crate) counts: Vec<Counts>,
    pub(crate) left_out: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) cores: usize,
    /// How many processes wanted to run in the minute before: others disturb.
    pub(crate) load_before: Option<f64>,
    pub(crate) postgresql: String,
    pub(crate) pool_connections: u32,
    pub(crate) mode: &'static str,
    pub(crate) rounds: usize,
    pub(crate) slot_ms: f64,
    /// `select 1`, directly and through the delaying proxy.
    pub(crate) round_trip_ms: f64,
    pub(crate) delayed_round_trip_ms: f64,
}

#[derive(Debug, Serialize)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) variant: &'static str,
    pub(crate) per_second: Spread,
    /// Requests per second, round by round.
    pub(crate) rounds: Vec<f64>,
    /// Of all rounds together.
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) ratios: Vec<Cell>,
}

/// Throughput against another variant's of the same round.
#[derive(Debug, Serialize)]
pub(crate) struct Cell {
    pub(crate) to: &'static str,
    pub(crate) ratio: Spread,
}

pub(crate) fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

pub(crate) fn load() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

impl Machine {
    pub(crate) fn line(&self) -> String {
        format!(
            "{} cores for clients, servers and PostgreSQL {} (fsync and synchronous_commit on), pools of {}; \
             {} rounds of {} ms; load before {:.2}; select 1 takes {:.3} ms, through the delaying proxy {:.3} ms",
            self.cores,
            self.postgresql,
            self.pool_connections,
            self.rounds,
            self.slot_ms,
            self.load_before.unwrap_or_default(),
            self.round_trip_ms,
            self.delayed_round_trip_ms
        )
    }
}

impl Scenario {
    pub(crate) fn table(&self) -> String {
        let mut table = format!("\n{}\n{:<24} {:>22} {:>9} {:>9}", self.name, "", "requests/s", "p50 ms", "p99 ms");
        for cell in self.rows.first().map(|row| &row.ratios).into_iter().flatten() {
            write!(table, "   {:>24}", format!("/ {}", cell.to)).ok();
        }
        for row in &self.rows {
            let Spread { median, min, max } = row.per_second;
            let rate = format!("{median:.0} ({min:.0}..{max:.0})");
            write!(table, "\n{:<24} {rate:>22} {:>9.2} {:>9.2}", row.variant, row.p50_ms, row.p99_ms).ok();
            for Cell { ratio, .. } in &row.ratios {
                write!(table, "   {:>24}", spread(*ratio)).ok();
            }
        }
        table
    }
}

pub(crate) fn storm_table(storms: &[Storm]) -> String {
    let duplicates = storms.first().map_or(0, |storm| storm.duplicates);
    let mut table = format!(
        "\nstorm of {duplicates} duplicates\n{:<24} {:>10} {:>10} {:>20} {:>12} {:>12} {:>16}",
        "", "single ms", "wall ms", "wall / single", "executions", "connections", "statuses"
    );
    for storm in storms {
        let statuses: Vec<_> = storm.statuses.iter().map(|(status, count)| format!("{status}: {count}")).collect();
        let executions = storm.executions.iter().max().copied().unwrap_or_default();
        write!(
            table,
            "\n{:<24} {:>10.0} {:>10.0} {:>20} {executions:>12} {:>12} {:>16}",
            storm.variant,
            storm.single_ms.median,
            storm.wall_ms.median,
            spread(storm.ratio),
            storm.busy_connections,
            statuses.join(", ")
        )
        .ok();
    }
    table
}

pub(crate) fn counts_table(counts: &[Counts]) -> String {
    let mut table = format!(
        "\ncounted per request\n{:<24} {:<10} {:>10} {:>11} {:>9} {:>9} {:>9} {:>6} {:>6}",
        "", "", "statements", "round trips", "WAL bytes", "inserted", "updated", "HOT", "dead"
    );
    for counted in counts {
        write!(
            table,
            "\n{:<24} {:<10} {:>10.2} {:>11.2} {:>9.0} {:>9.2} {:>9.2} {:>6.2} {:>6.2}",
            counted.variant,
            counted.request,
            counted.statements,
            counted.round_trips,
            counted.wal_bytes,
            counted.inserted,
            counted.updated,
            counted.hot,
            counted.dead
        )
        .ok();
    }
    table
}

fn spread(spread: Spread) -> String {
    format!("{:.2} ({:.2}..{:.2})", spread.median, spread.min, spread.max)
}

/// Where results are kept.
pub(crate) fn results() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("results")
}

impl Report {
    pub(crate) fn write(&self) -> Result<(), Box<dyn Error>> {
        fs::create_dir_all(results())?;
        let mut json = serde_json::to_string_pretty(self)?;
        json.push('\n');
        fs::write(results().join("throughput.json"), json)?;
        Ok(())
    }
}
