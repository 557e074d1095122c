//! A constant load of which every answer is checked. Its clients open a connection for each request and never try again.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use scafo_tests::load::{Outcome, client, send};
use tokio::task::JoinSet;

use crate::fleet::{APPLICATIONS, Subject, host, name};

/// Clients, of which every third sends bodies.
const CLIENTS: usize = 6;
/// One request of a client every so often.
const PACE: Duration = Duration::from_millis(60);

/// What became of one request.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) application: usize,
    pub(crate) sent: Instant,
    pub(crate) ended: Instant,
    pub(crate) outcome: Outcome,
}

impl Answer {
    /// Whether it is what the application says to this very request.
    pub(crate) fn is_good(&self, expected: &str) -> bool {
        matches!(&self.outcome, Outcome::Answered { status: 200, body } if body == expected)
    }
}

/// The clients.
pub(crate) struct Loads {
    stop: Arc<AtomicBool>,
    clients: JoinSet<Vec<(Answer, bool)>>,
}

/// All answers, and which were good.
pub(crate) type Answers = Vec<(Answer, bool)>;

impl Loads {
    pub(crate) fn start(subject: &Subject) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let turn = Arc::new(AtomicU64::new(0));
        let mut clients = JoinSet::new();
        for number in 0..CLIENTS {
            clients.spawn(ask(subject.ingress(), Arc::clone(&stop), Arc::clone(&turn), number % 3 == 0));
        }
        Self { stop, clients }
    }

    pub(crate) async fn stop(mut self) -> Answers {
        self.stop.store(true, Ordering::Relaxed);
        let mut answers = Vec::new();
        while let Some(client) = self.clients.join_next().await {
            answers.extend(client.expect("a client ends"));
        }
        answers.sort_by_key(|(answer, _)| answer.sent);
        answers
    }
}

async fn ask(ingress: Arc<RwLock<String>>, stop: Arc<AtomicBool>, turn: Arc<AtomicU64>, posts: bool) -> Answers {
    let client = client();
    let mut answers = Vec::new();
    let mut pace = tokio::time::interval(PACE);
    pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while !stop.load(Ordering::Relaxed) {
        pace.tick().await;
        let turn = turn.fetch_add(1, Ordering::Relaxed);
        let application = usize::try_from(turn).unwrap() % APPLICATIONS;
        let url = ingress.read().unwrap().clone();
        let request =
            if posts { client.post(&url).body(turn.to_string()) } else { client.get(format!("{url}/?{turn}")) };
        let sent = Instant::now();
        let outcome = send(request.header("host", host(application))).await;
        let answer = Answer { application, sent, ended: Instant::now(), outcome };
        let good = answer.is_good(&format!("{} {turn}", name(application)));
        answers.push((answer, good));
    }
    answers
}
