//! One scenario, all its variants in turn.

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use indicatif::ProgressBar;

use crate::{
    client::Client,
    database::Databases,
    report::{Cell, Row},
    scenario::{Load, Scenario},
    site::{Site, fresh},
    statistics::{Spread, median, percentile},
    variants::Variant,
    work::Work,
};

/// How long it all takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pub(crate) rounds: usize,
    pub(crate) slot: Duration,
    pub(crate) warm_up: Duration,
    pub(crate) duplicates: usize,
    pub(crate) storm_rounds: usize,
}

/// What one variant did in one slot.
struct Slot {
    per_second: f64,
    /// In milliseconds.
    latencies: Vec<f64>,
}

/// A site with its clients, which stay connected from round to round.
struct Crew {
    site: Arc<Site>,
    clients: Vec<Client>,
    slots: Vec<Slot>,
}

pub(crate) async fn measure(
    scenario: &Scenario,
    variants: &[Variant],
    databases: &mut Databases,
    pace: Pace,
    progress: &ProgressBar,
) -> Result<Vec<Row>, Box<dyn Error>> {
    let mut crews = Vec::new();
    for &variant in variants {
        let pool = databases.pool(variant, scenario.delayed).await?;
        let work = Work::new(scenario.response_bytes, scenario.pause);
        let mut site = Site::start(variant, pool.clone(), work, scenario.request_bytes).await?;
        if scenario.load != Load::First {
            site.answer(pool, scenario.clients * 8).await?;
        }
        let clients = site.clients(scenario.clients).await;
        crews.push(Crew { site: Arc::new(site), clients, slots: Vec::new() });
    }
    for round in 0..=pace.rounds {
        for turn in 0..crews.len() {
            // Whoever comes first in one round does not in the next.
            let number = (turn + round) % crews.len();
            let crew = &mut crews[number];
            progress.set_message(format!("{}: {}", scenario.name, crew.site.variant.name()));
            if round == 0 {
                slot(scenario, crew, pace.warm_up).await?;
            } else {
                let slot = slot(scenario, crew, pace.slot).await?;
                crew.slots.push(slot);
            }
            progress.inc(1);
        }
    }
    Ok(crews.iter().map(|crew| row(scenario, crew, &crews)).collect())
}

fn row(scenario: &Scenario, crew: &Crew, crews: &[Crew]) -> Row {
    let rounds: Vec<_> = crew.slots.iter().map(|slot| slot.per_second).collect();
    let latencies: Vec<_> = crew.slots.iter().flat_map(|slot| &slot.latencies).copied().collect();
    let ratio = |reference: Variant| {
        let other = crews.iter().find(|other| other.site.variant == reference)?;
        let ratios: Vec<_> =
            crew.slots.iter().zip(&other.slots).map(|(own, other)| own.per_second / other.per_second).collect();
        Some(Cell { to: reference.name(), ratio: Spread::of(&ratios) })
    };
    Row {
        variant: crew.site.variant.name(),
        per_second: Spread::of(&rounds),
        rounds,
        p50_ms: median(&latencies),
        p99_ms: percentile(&latencies, 0.99),
        ratios: scenario.references.into_iter().filter_map(ratio).collect(),
    }
}

/// All clients ask, each as soon as it has its answer, until the time is over.
async fn slot(scenario: &Scenario, crew: &mut Crew, length: Duration) -> Result<Slot, Box<dyn Error>> {
    let before = crew.site.executed();
    let began = Instant::now();
    let first_calls = Arc::new(AtomicU64::new(0));
    let asking: Vec<_> = crew
        .clients
        .drain(..)
        .enumerate()
        .map(|(number, client)| {
            let (site, first_calls, scenario) = (crew.site.clone(), first_calls.clone(), *scenario);
            tokio::spawn(async move { ask(client, number, &site, &scenario, &first_calls, began + length).await })
        })
        .collect();
    let mut latencies = Vec::new();
    for asked in asking {
        let (client, own) = asked.await?;
        crew.clients.push(client);
        latencies.extend(own);
    }
    let elapsed = began.elapsed().as_secs_f64();
    // Those that execute do so once for each first call, and for nothing else.
    if !matches!(crew.site.variant, Variant::Select | Variant::Constant | Variant::Bare) {
        let executed = crew.site.executed() - before;
        assert_eq!(executed, first_calls.load(Ordering::SeqCst), "{}: executions", crew.site.variant.name());
    }
    Ok(Slot { per_second: latencies.len() as f64 / elapsed, latencies })
}

/// One client's part, and its latencies.
async fn ask(
    mut client: Client,
    number: usize,
    site: &Site,
    scenario: &Scenario,
    first_calls: &AtomicU64,
    end: Instant,
) -> (Client, Vec<f64>) {
    let owner = if scenario.hot { "everybody".to_owned() } else { format!("client-{number}") };
    let mut latencies = Vec::new();
    while Instant::now() < end {
        let turn = latencies.len();
        let first = match scenario.load {
            Load::First => true,
            Load::Replay => false,
            Load::Half => turn.is_multiple_of(2),
        };
        // The handler without protection has nothing to replay: it works each time.
        let unprotected = site.variant == Variant::Bare;
        let began = Instant::now();
        if first || unprotected {
            let answer = client.ask(&fresh(owner.clone())).await;
            site.check_first(&answer);
            first_calls.fetch_add(1, Ordering::SeqCst);
        } else {
            let (intent, body) = &site.answered[(turn * scenario.clients + number) % site.answered.len()];
            let answer = client.ask(intent).await;
            site.check_replay(&answer, body);
        }
        latencies.push(began.elapsed().as_secs_f64() * 1_000.0);
    }
    (client, latencies)
}
