const USAGE: &str = "usage: cargo bench --bench throughput -- [--short | --full] [--only SUBSTRING]";

/// What the command line asks for.
#[derive(Debug, Default)]
pub(crate) struct Arguments {
    pub(crate) full: bool,
    /// Only scenarios whose name holds this; `storm` and `counters` count as scenarios.
    pub(crate) only: Option<String>,
}

impl Arguments {
    pub(crate) fn parse(given: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let mut arguments = Self::default();
        let mut given = given.into_iter();
        while let Some(argument) = given.next() {
            match argument.as_str() {
                "--short" => arguments.full = false,
                "--full" => arguments.full = true,
                "--only" => arguments.only = Some(given.next().ok_or(USAGE)?),
                // What cargo passes to every bench.
                "--bench" => {}
                unknown => return Err(format!("unknown argument `{unknown}`; {USAGE}")),
            }
        }
        Ok(arguments)
    }

    pub(crate) fn wants(&self, scenario: &str) -> bool {
        self.only.as_ref().is_none_or(|only| scenario.contains(only.as_str()))
    }
}
