//! The statements, file by file: they run as they stand, those that must agree do, and nothing in them can be captured by
//! what somebody puts into a schema (F76).

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::http::StatusCode;
use axum_idempotency::{
    Claim, Duplicate, Fingerprint, Idempotency, IdempotencyKey, IdempotentRequest, Operation, Rejected, Retention,
    Scope, StoredResponse, TimestampedKeys, migrate, migrate_partitioned,
};
use sqlx::{AssertSqlSafe, Executor as _, PgConnection, postgres::PgConnectOptions};

use crate::support::{Database, engine};

/// A file: its parameters' types, and the statement.
struct Statement {
    types: Vec<String>,
    text: String,
}

fn statements() -> BTreeMap<String, Statement> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/postgres/sql");
    let mut found = BTreeMap::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.insert(name(&root, &path), read(&path));
            }
        }
    }
    assert!(found.len() > 40, "{}", found.len());
    found
}

fn name(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap().with_extension("").to_string_lossy().into_owned()
}

fn read(path: &Path) -> Statement {
    let file = fs::read_to_string(path).unwrap();
    let (head, text) = file.split_once("\n\n").unwrap_or_else(|| panic!("{path:?}: comment, empty line, statement"));
    assert!(head.lines().all(|line| line.starts_with("--")), "{path:?}");
    let parameters: Vec<_> = head.lines().filter_map(|line| line.strip_prefix("-- $")).collect();
    let parameter = |(n, line): (usize, &&str)| {
        let mut words = line.splitn(3, ' ');
        assert_eq!(words.next(), Some((n + 1).to_string().as_str()), "{path:?}: {line}");
        assert!(words.next().is_some(), "{path:?}: a name");
        words.next().unwrap_or_else(|| panic!("{path:?}: a type")).to_owned()
    };
    Statement { types: parameters.iter().enumerate().map(parameter).collect(), text: text.to_owned() }
}

async fn migrated() -> Database {
    let database = Database::fresh().await;
    migrate_partitioned(&database.pool_of(1).await).await.unwrap();
    database
}

async fn run(connection: &mut PgConnection, sql: String) -> Result<(), sqlx::Error> {
    connection.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await.map(drop)
}

#[tokio::test]
async fn each_statement_runs_in_psql_as_it_stands_with_the_parameters_that_its_comment_names() {
    let database = migrated().await;
    let mut connection = database.connection().await;
    for (name, Statement { types, text }) in statements() {
        run(&mut connection, format!("prepare it as {text}")).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        let inferred: Vec<String> = sqlx::query_scalar(
            "select pg_catalog.format_type(type, null)
               from pg_catalog.pg_prepared_statements,
                    unnest(parameter_types::oid[]) with ordinality types (type, n)
              where name = 'it' order by n",
        )
        .fetch_all(&mut connection)
        .await
        .unwrap();
        let inferred: Vec<_> =
            inferred.iter().map(|name| name.replace("timestamp with time zone", "timestamptz")).collect();
        assert_eq!(inferred, types, "{name}");
        run(&mut connection, "deallocate it".to_owned()).await.unwrap();
    }
}

/// What a statement for the partitioned table says otherwise than the one for the plain table: it names the row by its time
/// too.
fn as_for_keys(text: &str) -> String {
    let mut text = text.replace("timed_keys", "keys");
    for born in [", $4", ", $5", ", $8", ", $10", ", due.born_at"] {
        text = text.replace(&format!("{born})"), ")");
    }
    let text = text.replace(", born_at) operator", ") operator").replace(", present.born_at)", ")");
    let text = text.replace("conflict (scope, operation, key, born_at)", "conflict (scope, operation, key)");
    let text = text.replace("key, born_at from", "key from").replace("$9::pg_catalog.text", "$8::pg_catalog.text");
    let text = text.replace("$11::pg_catalog.text", "$10::pg_catalog.text");
    let numbered = |text: String, n: u8| text.replace(&format!("${n}::bigint as token"), "$n::bigint as token");
    (8..=12).fold(text, numbered)
}

#[test]
fn statements_that_must_agree_have_not_drifted() {
    let statements = statements();
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let mut compared = BTreeSet::new();
    for (name, timed) in statements.iter().filter(|(name, _)| name.starts_with("timed_keys/")) {
        let plain = &statements[&name.replace("timed_keys/", "keys/")];
        // In the partitioned table a place says nothing without its partition.
        if !name.ends_with("/drop_responses") {
            assert_eq!(words(&as_for_keys(&timed.text)), words(&as_for_keys(&plain.text)), "{name}");
            compared.insert(name);
        }
    }
    assert!(compared.len() >= 10, "{compared:?}");
    // The claims that do not wait look alike but for the bound of the wait.
    let tail = |name: &str| words(statements[name].text.split_once("present.fingerprint,").unwrap().1);
    let without = |mut words: Vec<String>| {
        words.retain(|word| !["cross", "join", "setting"].contains(&word.as_str()));
        words
    };
    assert_eq!(without(tail("keys/claim")), without(tail("keys/claim_bounded")));
}

/// Everything that our statements use, again in a schema `hostile`: operators of those names between all types that occur,
/// functions and aggregates with the same arguments, and types of those names.
async fn hostile(connection: &mut PgConnection, operators: &BTreeSet<String>, functions: &BTreeSet<String>) {
    let operators = operators.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(",");
    let functions = functions.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(",");
    let sql = format!(
        "create schema hostile;
         do $do$
         declare made int := 0; a text; b text; o text; f record; result text;
                 types text[] := array['smallint', 'integer', 'bigint', 'double precision', 'numeric', 'text', 'name',
                   'timestamptz', 'interval', 'boolean', 'oid', 'tid', 'inet', 'regclass', 'record'];
         begin
           foreach o in array array[{operators}] loop
             foreach a in array types loop
               foreach b in array types loop
                 continue when 'record' in (a, b) and a <> b;
                 result := case when o in ('+', '-', '*', '/') then a else 'boolean' end;
                 begin
                   execute format('create function hostile.trap_%s(%s, %s) returns %s language plpgsql
                                     as $f$ begin raise ''captured''; end $f$', made, a, b, result);
                   execute format('create operator hostile.%s (leftarg = %s, rightarg = %s, function = hostile.trap_%s)',
                                  o, a, b, made);
                   made := made + 1;
                 exception when undefined_function or invalid_function_definition or feature_not_supported then null;
                 end;
               end loop;
             end loop;
           end loop;
           for f in select proname, prokind, oid::regprocedure as signature, prorettype,
                           pg_get_function_identity_arguments(oid) as arguments, proretset
                      from pg_proc
                     where pronamespace = 'pg_catalog'::regnamespace and proname in ({functions}) loop
             begin
               if f.prokind = 'a' then
                 execute format('create function hostile.step_%s(bigint, %s) returns bigint language sql as ''select 0''',
                                made, nullif(f.arguments, ''));
                 execute format('create aggregate hostile.%I (%s) (sfunc = hostile.step_%s, stype = bigint)',
                                f.proname, f.arguments, made);
               else
                 execute format('create function hostile.%I (%s) returns %s %s language plpgsql
                                   as $f$ begin raise ''captured''; end $f$',
                                f.proname, f.arguments, case when f.proretset then 'setof' else '' end,
                                format_type(f.prorettype, null));
               end if;
               made := made + 1;
             exception when others then null;
             end;
           end loop;
           assert made > 500, made;
         end $do$;
         create function hostile.count_step(bigint) returns bigint language sql as 'select 0';
         create aggregate hostile.count(*) (sfunc = hostile.count_step, stype = bigint);
         create function hostile.system(internal) returns tsm_handler language internal as 'tsm_system_handler';
         create domain hostile.text as integer;
         create domain hostile.tid as integer;
         create domain hostile.regclass as integer;
         create domain hostile.timestamptz as integer"
    );
    run(connection, sql).await.unwrap();
}

/// The operators and functions of PostgreSQL's that the statements name.
fn names(statements: &BTreeMap<String, Statement>) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut operators, mut functions) = (BTreeSet::new(), BTreeSet::new());
    for Statement { text, .. } in statements.values() {
        for part in text.split("operator(pg_catalog.").skip(1) {
            operators.insert(part.split(')').next().unwrap().to_owned());
        }
        for part in text.split("pg_catalog.").skip(1) {
            let name: String = part.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect();
            if part[name.len()..].starts_with('(') && !name.is_empty() {
                functions.insert(name);
            }
        }
    }
    (operators, functions)
}

/// What of the schema `hostile` a statement would use, as PostgreSQL notes it for a function.
async fn captured(connection: &mut PgConnection, types: &[String], text: &str) -> Result<Vec<String>, sqlx::Error> {
    let types: Vec<_> = types.iter().map(|name| name.replace("text", "pg_catalog.text")).collect();
    let types: Vec<_> = types.iter().map(|name| name.replace("timestamptz", "pg_catalog.timestamptz")).collect();
    let create =
        format!("create function public.it({}) returns void language sql begin atomic {text}; end", types.join(","));
    run(connection, create).await?;
    let captured = sqlx::query_scalar(
        "select identified.identity
           from pg_catalog.pg_depend, pg_catalog.pg_identify_object(refclassid, refobjid, refobjsubid) identified
          where objid operator(pg_catalog.=) 'public.it'::pg_catalog.regproc
            and identified.schema operator(pg_catalog.=) 'hostile'",
    )
    .persistent(false)
    .fetch_all(&mut *connection)
    .await?;
    run(connection, "drop function public.it".to_owned()).await?;
    Ok(captured)
}

#[tokio::test]
async fn f76_whatever_the_search_path_finds_first_no_statement_uses_it() {
    let database = migrated().await;
    let statements = statements();
    let (operators, functions) = names(&statements);
    assert!(operators.len() >= 8 && functions.len() >= 20, "{operators:?} {functions:?}");
    let mut connection = database.connection().await;
    hostile(&mut connection, &operators, &functions).await;
    run(&mut connection, "set search_path = hostile, pg_catalog, public".to_owned()).await.unwrap();
    let mut shown = 0;
    for (name, Statement { types, text }) in &statements {
        let used = captured(&mut connection, types, text).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(used.is_empty(), "{name} uses {used:?}");
        // That this can fail: the same statement without the qualifications.
        let mut plain = text.replace("operator(pg_catalog.", "operator(").replace(" pg_catalog.system", " system");
        for function in &functions {
            plain = plain.replace(&format!("pg_catalog.{function}("), &format!("{function}("));
        }
        for operator in &operators {
            plain = plain.replace(&format!("operator({operator})"), operator);
        }
        if plain == *text {
            continue;
        }
        match captured(&mut connection, types, &plain).await {
            Ok(used) => assert!(!used.is_empty(), "{name} has nothing to capture?"),
            // Where rows are compared, PostgreSQL finds the other operator, which does not sort.
            Err(error) => assert!(error.to_string().contains("row comparison operator"), "{name}: {error}"),
        }
        shown += 1;
    }
    assert!(shown >= 45, "{shown} of {}", statements.len());
}

fn request(key: &str) -> IdempotentRequest {
    let key = IdempotencyKey::new(key).unwrap();
    IdempotentRequest::new(Scope::new("alice"), Operation::new("o"), key, Fingerprint::of(["f"]))
}

fn response() -> StoredResponse {
    StoredResponse::new(StatusCode::CREATED, "done")
}

/// Everything that the crate does, once.
async fn everything(options: PgConnectOptions) {
    let timed_request = |operation: &str, key: &str| {
        let key = IdempotencyKey::new(key).unwrap();
        IdempotentRequest::new(Scope::new("alice"), Operation::new(operation), key, Fingerprint::of(["f"]))
    };
    let pool = Database::pool_with(options, 4).await;
    migrate_partitioned(&pool).await.unwrap();
    let plain = engine(&pool).retention(Retention::new(Duration::from_secs(3_600)).unwrap());
    let elsewhere = engine(&pool);
    let fresh = async |engine: &Idempotency, key: &str| match engine.claim(request(key)).await.unwrap() {
        Claim::Fresh(attempt) => attempt,
        other => panic!("{other:?}"),
    };
    let replays = async |engine: &Idempotency, key: &str| {
        matches!(engine.claim(request(key)).await.unwrap(), Claim::Duplicate(Duplicate::Replay(_)))
    };
    fresh(&plain, "a").await.complete(&response()).await.unwrap();
    assert!(replays(&plain, "a").await && replays(&elsewhere, "a").await);
    fresh(&plain, "b").await.release().await.unwrap();
    assert!(matches!(fresh(&plain, "b").await.reject(&response()).await.unwrap(), Rejected::Stored(_)));
    let own = response().with_retention(Retention::new(Duration::from_secs(60)).unwrap());
    fresh(&plain, "c").await.complete(&own).await.unwrap();
    // One of another process waits.
    let first = fresh(&plain, "d").await;
    let waiting = tokio::spawn(async move { elsewhere.claim(request("d")).await });
    first.complete(&response()).await.unwrap();
    assert!(matches!(waiting.await.unwrap().unwrap(), Claim::Duplicate(Duplicate::Replay(_))));
    let mut transaction = pool.begin().await.unwrap();
    assert!(matches!(
        plain.claim_using(&mut transaction, &request("e")).await.unwrap(),
        axum_idempotency::ClaimUsing::Fresh
    ));
    plain.complete_using(&mut transaction, &request("e"), &own).await.unwrap();
    transaction.commit().await.unwrap();
    let keys = TimestampedKeys::uuid_v7(Duration::from_secs(3_600)).unwrap();
    for (operation, keys) in [("timed", keys), ("partitioned", keys.partitioned().unwrap())] {
        let timed = engine(&pool).timestamped_keys(keys);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
        let key = format!("{:08x}-{:04x}-7000-8000-000000000000", now >> 16, now & 0xffff);
        let request = || timed_request(operation, &key);
        let Claim::Fresh(attempt) = timed.claim(request()).await.unwrap() else { panic!("{operation}") };
        attempt.complete(&own).await.unwrap();
        assert!(matches!(timed.claim(request()).await.unwrap(), Claim::Duplicate(Duplicate::Replay(_))));
    }
    let (scope, operation) = (Scope::new("alice"), Operation::new("o"));
    assert!(plain.lookup(&scope, &operation, &IdempotencyKey::new("a").unwrap()).await.unwrap().is_some());
    assert!(plain.stats().await.unwrap().operations[0].live >= 5);
    plain.prune(10).await.unwrap();
    assert!(plain.erase_scope(&scope).await.unwrap().keys >= 5);
    migrate(&pool).await.unwrap();
}

#[tokio::test]
async fn f76_everything_works_where_all_that_it_uses_was_put_before_it_in_the_search_path() {
    let database = Database::unmigrated().await;
    let (operators, functions) = names(&statements());
    hostile(&mut database.connection().await, &operators, &functions).await;
    everything(database.options().options([("search_path", "hostile,pg_catalog,public")])).await;
}

#[tokio::test]
async fn f76_an_operator_of_somebody_elses_in_public_lets_no_key_expire() {
    let database = Database::fresh().await;
    let minus = "create function public.day_before(bigint, interval) returns interval language sql
                   as $$ select interval '-1 day' $$;
                 create operator public.* (leftarg = bigint, rightarg = interval, function = public.day_before)";
    run(&mut database.connection().await, minus.to_owned()).await.unwrap();
    let pool = database.pool().await;
    let mut executed = 0;
    for _ in 0..3 {
        if let Claim::Fresh(attempt) = engine(&pool).claim(request("k")).await.unwrap() {
            attempt.complete(&response()).await.unwrap();
            executed += 1;
        }
    }
    assert_eq!(executed, 1);
}
