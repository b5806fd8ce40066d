//! The node's free slots, shared between its queues by weight.
//!
//! A queue that knows of work is hungry. While several are, free slots go to the one that has had least for its weight (stride
//! scheduling); a queue that comes back from an empty spell gets no arrears. Slots are handed out in bunches, because a claim costs
//! the same for one job as for thirty. Deliberately absent: Redis.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

/// How long a claim waits for more slots while the node is busy: a claim for one slot costs as much as one for many.
const GATHER: Duration = Duration::from_millis(1);

/// All slots of a node.
#[derive(Debug)]
pub struct Slots {
    capacity: usize,
    strict: bool,
    inner: Mutex<Inner>,
    changed: Vec<Notify>,
    /// Woken when a slot is free at all.
    any_free: Notify,
}

#[derive(Debug)]
struct Inner {
    free: usize,
    /// The pass of the queue that was served last, before it was served: where one that comes back from an empty spell begins.
    reached: f64,
    queues: Vec<Queue>,
}

#[derive(Debug)]
struct Queue {
    weight: u32,
    hungry: bool,
    /// Slots had so far, divided by the weight.
    pass: f64,
}

impl Slots {
    /// `weights` in the order of the queues' numbers. Strict: a heavier queue goes first, always.
    #[must_use]
    pub fn new(capacity: usize, weights: &[u32], strict: bool) -> Self {
        let queues = weights.iter().map(|weight| Queue { weight: (*weight).max(1), hungry: false, pass: 0.0 }).collect();
        Self {
            capacity,
            strict,
            inner: Mutex::new(Inner { free: capacity, reached: 0.0, queues }),
            changed: weights.iter().map(|_| Notify::new()).collect(),
            any_free: Notify::new(),
        }
    }

    /// All slots, free or not.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Slots that are free now.
    #[must_use]
    pub fn free(&self) -> usize {
        self.lock().free
    }

    /// Takes 1 to `most` slots for a queue that knows of work; waits for its turn. `eager` takes what is free at once, otherwise it
    /// gathers for a moment. Cancel-safe: nothing is taken until it returns, and what it returns gives back what is not used.
    pub async fn take(&self, queue: usize, most: usize, eager: bool) -> Taken<'_> {
        Taken { slots: self, count: self.take_count(queue, most, eager).await }
    }

    async fn take_count(&self, queue: usize, most: usize, eager: bool) -> usize {
        {
            let mut inner = self.lock();
            if !inner.queues[queue].hungry {
                let reached = inner.reached;
                let own = &mut inner.queues[queue];
                own.hungry = true;
                own.pass = own.pass.max(reached);
            }
        }
        let _no_longer_hungry = Sated { slots: self, queue };
        let enough = if eager { 1 } else { self.capacity.div_ceil(2).min(most) };
        let mut gathering = None;
        loop {
            let woken = self.changed[queue].notified();
            if let Some(taken) = self.try_take(queue, most, enough) {
                return taken;
            }
            let some_free = self.free() > 0;
            match (&mut gathering, some_free) {
                (None, true) => gathering = Some(Box::pin(tokio::time::sleep(GATHER))),
                (Some(_), false) => gathering = None,
                _ => {}
            }
            match &mut gathering {
                None => woken.await,
                Some(timer) => {
                    tokio::select! {
                        biased;
                        () = woken => {}
                        () = timer.as_mut() => {
                            if let Some(taken) = self.try_take(queue, most, 1) {
                                return taken;
                            }
                            // Free slots are another queue's turn: wait to be woken.
                            self.changed[queue].notified().await;
                            gathering = None;
                        }
                    }
                }
            }
        }
    }

    fn try_take(&self, queue: usize, most: usize, enough: usize) -> Option<usize> {
        let mut inner = self.lock();
        if inner.free < enough.max(1) {
            return None;
        }
        let rivals: u64 = inner.queues.iter().filter(|one| one.hungry).map(|one| u64::from(one.weight)).sum();
        let own = &inner.queues[queue];
        let first = inner.queues.iter().enumerate().filter(|(_, one)| one.hungry).all(|(index, one)| {
            index == queue
                || if self.strict { (own.weight, index) > (one.weight, queue) } else { (own.pass, queue) <= (one.pass, index) }
        });
        if !first {
            return None;
        }
        let weight = u64::from(own.weight);
        let part = if self.strict || rivals <= weight {
            inner.free
        } else {
            usize::try_from((inner.free as u64 * weight).div_ceil(rivals)).unwrap_or(inner.free)
        };
        let taken = part.min(inner.free).min(most).max(1);
        inner.free -= taken;
        inner.reached = inner.reached.max(inner.queues[queue].pass);
        #[expect(clippy::cast_precision_loss, reason = "slot counts are small")]
        {
            inner.queues[queue].pass += taken as f64 / f64::from(inner.queues[queue].weight);
        }
        let left = inner.free;
        drop(inner);
        if left > 0 {
            self.wake();
        }
        Some(taken)
    }

    /// Gives slots back.
    pub fn give_back(&self, count: usize) {
        if count == 0 {
            return;
        }
        {
            let mut inner = self.lock();
            inner.free = (inner.free + count).min(self.capacity);
        }
        self.wake();
    }

    /// Takes slots that were used without being asked for: jobs that Redis knows of and the node did not.
    pub fn overdraw(&self, count: usize) {
        let mut inner = self.lock();
        inner.free = inner.free.saturating_sub(count);
    }

    /// Waits until a slot is free. Takes nothing. Cancel-safe.
    pub async fn wait_free(&self) {
        loop {
            let woken = self.any_free.notified();
            if self.free() > 0 {
                return;
            }
            woken.await;
        }
    }

    fn wake(&self) {
        let hungry: Vec<usize> = {
            let inner = self.lock();
            inner.queues.iter().enumerate().filter(|(_, queue)| queue.hungry).map(|(index, _)| index).collect()
        };
        for index in hungry {
            self.changed[index].notify_one();
        }
        self.any_free.notify_waiters();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Slots in hand. What is not used goes back, also when the task that holds them is aborted.
#[derive(Debug)]
pub struct Taken<'a> {
    slots: &'a Slots,
    count: usize,
}

impl Taken<'_> {
    /// How many.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// So many are occupied now and come back one by one; the rest goes back at once. More than were taken are overdrawn.
    pub fn occupy(mut self, used: usize) {
        if used > self.count {
            self.slots.overdraw(used - self.count);
        }
        self.count = self.count.saturating_sub(used);
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.slots.give_back(self.count);
    }
}

/// Ends a queue's hunger however `take` ends.
struct Sated<'a> {
    slots: &'a Slots,
    queue: usize,
}

impl Drop for Sated<'_> {
    fn drop(&mut self) {
        self.slots.lock().queues[self.queue].hungry = false;
        if self.slots.free() > 0 {
            self.slots.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn an_alone_queue_takes_all_and_never_more_than_there_is() {
        let slots = Slots::new(8, &[1], false);
        let all = slots.take(0, 100, true).await;
        assert_eq!(all.count(), 8);
        all.occupy(8);
        assert!(tokio::time::timeout(Duration::from_millis(20), slots.take(0, 100, true)).await.is_err());
        slots.give_back(3);
        let two = slots.take(0, 2, true).await;
        assert_eq!((two.count(), slots.free()), (2, 1));
        drop(two);
        assert_eq!(slots.free(), 3);
    }

    async fn shares(weights: &[u32], strict: bool) -> Vec<usize> {
        let slots = Arc::new(Slots::new(1, weights, strict));
        let counts: Arc<Vec<AtomicUsize>> = Arc::new(weights.iter().map(|_| AtomicUsize::new(0)).collect());
        slots.take(0, 1, true).await.occupy(1);
        let mut tasks = Vec::new();
        for queue in 0..weights.len() {
            let (slots, counts) = (Arc::clone(&slots), Arc::clone(&counts));
            tasks.push(tokio::spawn(async move {
                loop {
                    slots.take(queue, 1, true).await.occupy(1);
                    counts[queue].fetch_add(1, Ordering::Relaxed);
                }
            }));
        }
        for _ in 0..400 {
            // Both wait before a slot comes back, as on a busy node.
            for _ in 0..8 {
                tokio::task::yield_now().await;
            }
            slots.give_back(1);
        }
        for task in tasks {
            task.abort();
        }
        counts.iter().map(|count| count.load(Ordering::Relaxed)).collect()
    }

    #[tokio::test]
    async fn scarce_slots_follow_the_weights() {
        let counts = shares(&[3, 1], false).await;
        let part = counts[0] * 100 / (counts[0] + counts[1]);
        assert!((70..=80).contains(&part), "{counts:?}");
    }

    #[tokio::test]
    async fn strict_serves_the_heavier_queue_alone() {
        let counts = shares(&[1, 5], true).await;
        assert!(counts[0] <= 1 && counts[1] > 300, "{counts:?}");
    }
}
