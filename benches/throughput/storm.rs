//! Many duplicates of one request at once.

use std::{
    collections::BTreeMap,
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use indicatif::ProgressBar;
use serde::Serialize;
use sqlx::PgConnection;

use crate::{
    database::Databases,
    measure::Pace,
    site::{Site, fresh},
    statistics::Spread,
    variants::Variant,
    work::Work,
};

/// What the request takes.
const PAUSE: Duration = Duration::from_millis(250);

/// What came of the storms on one variant.
#[derive(Debug, Serialize)]
pub(crate) struct Storm {
    pub(crate) variant: &'static str,
    pub(crate) duplicates: usize,
    /// One request alone, just before.
    pub(crate) single_ms: Spread,
    /// From the first request to the last answer.
    pub(crate) wall_ms: Spread,
    pub(crate) ratio: Spread,
    pub(crate) executions: Vec<u64>,
    pub(crate) statuses: BTreeMap<u16, usize>,
    /// The most connections that PostgreSQL saw busy, over all rounds.
    pub(crate) busy_connections: i64,
}

#[derive(Default)]
struct Seen {
    singles: Vec<f64>,
    walls: Vec<f64>,
    executions: Vec<u64>,
    statuses: BTreeMap<u16, usize>,
    busy: i64,
}

pub(crate) async fn storms(
    variants: &[Variant],
    databases: &mut Databases,
    pace: Pace,
    progress: &ProgressBar,
) -> Result<Vec<Storm>, Box<dyn Error>> {
    let mut sites = Vec::new();
    for &variant in variants {
        let pool = databases.pool(variant, false).await?;
        let site = Site::start(variant, pool, Work::new(100, PAUSE), 100).await?;
        sites.push((site, Seen::default()));
    }
    for round in 0..pace.storm_rounds {
        for turn in 0..sites.len() {
            let number = (turn + round) % sites.len();
            let (site, seen) = &mut sites[number];
            progress.set_message(format!("storm: {}", site.variant.name()));
            let watcher = databases.connection(site.variant).await?;
            storm(site, seen, pace.duplicates, watcher).await?;
            progress.inc(1);
        }
    }
    Ok(sites.iter().map(|(site, seen)| summary(site, seen, pace)).collect())
}

fn summary(site: &Site, seen: &Seen, pace: Pace) -> Storm {
    let ratios: Vec<_> = seen.walls.iter().zip(&seen.singles).map(|(wall, single)| wall / single).collect();
    Storm {
        variant: site.variant.name(),
        duplicates: pace.duplicates,
        single_ms: Spread::of(&seen.singles),
        wall_ms: Spread::of(&seen.walls),
        ratio: Spread::of(&ratios),
        executions: seen.executions.clone(),
        statuses: seen.statuses.clone(),
        busy_connections: seen.busy,
    }
}

async fn storm(site: &Site, seen: &mut Seen, duplicates: usize, watcher: PgConnection) -> Result<(), Box<dyn Error>> {
    let mut clients = site.clients(duplicates).await;
    let began = Instant::now();
    site.check_first(&clients[0].ask(&fresh("storm".to_owned())).await);
    seen.singles.push(began.elapsed().as_secs_f64() * 1_000.0);

    let (before, intent) = (site.executed(), Arc::new(fresh("storm".to_owned())));
    let over = Arc::new(AtomicBool::new(false));
    let watching = tokio::spawn(watch(watcher, over.clone()));
    let began = Instant::now();
    let asking: Vec<_> = clients
        .drain(..)
        .map(|mut client| {
            let intent = intent.clone();
            tokio::spawn(async move { client.ask(&intent).await })
        })
        .collect();
    let mut answers = Vec::with_capacity(duplicates);
    for asked in asking {
        answers.push(asked.await?);
    }
    seen.walls.push(began.elapsed().as_secs_f64() * 1_000.0);
    over.store(true, Ordering::SeqCst);
    seen.busy = seen.busy.max(watching.await??);

    let executed = site.executed() - before;
    let (name, (once, all_answered)) = (site.variant.name(), site.variant.in_a_storm());
    assert!(!once || executed == 1, "{name}: {executed} executions");
    let good = answers.iter().filter(|answer| answer.status == 201).count();
    assert!(good >= 1 && (good == duplicates || !all_answered), "{name}: {good} of {duplicates} were answered");
    if once {
        let bodies: std::collections::HashSet<_> =
            answers.iter().filter(|answer| answer.status == 201).map(|answer| &answer.body).collect();
        assert_eq!(bodies.len(), 1, "{name}: different answers");
    }
    for answer in &answers {
        assert!(matches!(answer.status.as_u16(), 201 | 409), "{name}: {}", answer.status);
        *seen.statuses.entry(answer.status.as_u16()).or_default() += 1;
    }
    seen.executions.push(executed);
    Ok(())
}

/// Looks at PostgreSQL's list of connections again and again.
async fn watch(mut connection: PgConnection, over: Arc<AtomicBool>) -> Result<i64, sqlx::Error> {
    const LOOKS: usize = 100_000;

    let mut most = 0;
    for _ in 0..LOOKS {
        if over.load(Ordering::SeqCst) {
            break;
        }
        let busy: i64 = sqlx::query_scalar(
            "select count(*) from pg_stat_activity
              where datname = current_database() and backend_type = 'client backend' and state <> 'idle'
                and pid <> pg_backend_pid()",
        )
        .fetch_one(&mut connection)
        .await?;
        most = most.max(busy);
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    Ok(most)
}
