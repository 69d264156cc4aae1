/* Takeover: a second dispatcher takes office while the first is paused or cut off, and does not know it.
 *
 * Dispatcher d has term d + 1 and gives its workers epoch d + 1. The new one fences both workers on both
 * shards; these grants carry its term, so from then on a shard knows it. Then it reads all reservations, and
 * only then it serves. The old one goes on with whatever it had begun, at any later moment: giving out,
 * confirming, evicting, releasing. It stops when the ledger answers that its term is over.
 *
 * Faults: the pause (every order of steps), EVICTIONS and DELETIONS by whoever takes itself for the leader,
 * EXPIRIES leases that end while the dispatcher in office counts on them. Each dispatcher gives out pods
 * GIVES times. Every run comes to an end. Pods are alike, but for their workers: pods 0 and 2 are with the
 * same one; the pod that is evicted is called 0. */

#ifndef EVICTIONS
#define EVICTIONS 1
#endif
#ifndef DELETIONS
#define DELETIONS 1
#endif
#ifndef EXPIRIES
#define EXPIRIES 1
#endif
#ifndef GIVES
#define GIVES 3
#endif

#define SHARDS 2
#define WORKERS 2
#define PODS 3
#define DISPATCHERS 2
#define X(d, p) ((d) * PODS + (p))
#define WORKER(d, p) (((d) + (p)) % WORKERS)
#define EPOCH(d) ((d) + 1)
#define TERM(d) ((d) + 1)

/* --- what each dispatcher knows of each pod --- */
#define QUEUED 0
#define SCHEDULING 1
#define PLACED 2    /* the outcome is on its way */
#define BOUND 3
#define UNSURE 4    /* not confirmed in time: to be looked up */
#define RELEASING 5
#define DELETED 6
byte phase[DISPATCHERS * PODS];
byte own_shard[DISPATCHERS * PODS], own_seq[DISPATCHERS * PODS];
bit confirmed[DISPATCHERS * PODS];
byte gives[DISPATCHERS];
bit deposed; /* the old dispatcher has noticed */

/* In the journal, whose writes carry the term too. */
bit deleted[PODS];
byte journal_term = 1;

byte evictions, deletions, expiries;

/* The takeover's next step. */
#define BEFORE 0
#define GRANT 1  /* four: worker by worker, shard by shard */
#define READ 5   /* two: shard by shard */
#define SERVING 7
byte takeover;
byte found_shard[PODS], found_seq[PODS], found_state[PODS];
hidden byte one_state, one_seq, at;

#define IN_OFFICE(d) ((d) == 0 -> takeover == BEFORE : takeover == SERVING)
#define LEADS(d) ((d) == 0 -> !deposed : takeover == SERVING)
#define KNOWS(d, s, p, q) (own_shard[X(d, p)] == s && own_seq[X(d, p)] == q)
#define FOUND(s, p, q) (found_shard[p] == s && found_seq[p] == q)
#define REMEMBERED(s, p, q) (KNOWS(0, s, p, q) || KNOWS(1, s, p, q) || FOUND(s, p, q))
#define AWAITED(s, p, q) (IN_OFFICE(0) -> KNOWS(0, s, p, q) : KNOWS(1, s, p, q) || FOUND(s, p, q))

#include "ledger.pml"

/* --- steps of both dispatchers and their workers --- */

inline give(d, p) {
    phase[X(d, p)] == QUEUED && LEADS(d) && gives[d] < GIVES;
    gives[d]++;
    phase[X(d, p)] = SCHEDULING
}

/* The worker's proposal, whenever it arrives. A refused pod goes back. */
inline propose(d, p, s) {
    phase[X(d, p)] == SCHEDULING;
    commit(s, p, WORKER(d, p), EPOCH(d));
    if
    :: answer == DONE -> phase[X(d, p)] = PLACED; own_shard[X(d, p)] = s; own_seq[X(d, p)] = answer_seq
    :: else -> requeue(d, p)
    fi
}

inline outcome(d, p) {
    phase[X(d, p)] == PLACED && LEADS(d);
    phase[X(d, p)] = (deleted[p] -> RELEASING : BOUND)
}

#define FORGET_PLACE(d, p) own_shard[X(d, p)] = 0; own_seq[X(d, p)] = 0; confirmed[X(d, p)] = 0

inline requeue(d, p) {
    phase[X(d, p)] = (deleted[p] -> DELETED : QUEUED);
    FORGET_PLACE(d, p)
}

/* A write under an older term is how the old dispatcher notices. */
inline notice(d) {
    assert(d == 0);
    deposed = 1
}

inline confirm_bound(d, p) {
    phase[X(d, p)] == BOUND && !confirmed[X(d, p)] && LEADS(d);
    confirm(own_shard[X(d, p)], p, own_seq[X(d, p)], TERM(d));
    if
    :: answer == DONE ->
        confirmed[X(d, p)] = 1;
        if
        :: IN_OFFICE(d) -> sure[p] = 1; shard_of[p] = own_shard[X(d, p)]
        :: else
        fi
    :: answer == GONE -> phase[X(d, p)] = UNSURE
    :: answer == STALE -> notice(d)
    fi
}

inline evict(d, p) {
    phase[X(d, p)] == BOUND && LEADS(d) && evictions < EVICTIONS;
    evictions++;
    let_go(d, p)
}

inline delete(d, p) {
    LEADS(d) && journal_term == TERM(d) && !deleted[p] && deletions < DELETIONS;
    deletions++;
    deleted[p] = 1;
    if
    :: phase[X(d, p)] == QUEUED -> phase[X(d, p)] = DELETED
    :: phase[X(d, p)] == BOUND -> let_go(d, p)
    :: else /* settled when it comes back */
    fi
}

inline let_go(d, p) {
    phase[X(d, p)] = RELEASING;
    if
    :: IN_OFFICE(d) -> sure[p] = 0; shard_of[p] = 0
    :: else
    fi
}

inline release_one(d, p) {
    phase[X(d, p)] == RELEASING && LEADS(d);
    release(own_shard[X(d, p)], p, own_seq[X(d, p)], TERM(d));
    if
    :: answer == STALE -> notice(d)
    :: else -> requeue(d, p)
    fi
}

inline look_up_unsure(d, p) {
    phase[X(d, p)] == UNSURE && LEADS(d);
    FORGET_PLACE(d, p);
    if
    :: COMMITTED(0, p) -> take(d, p, 0)
    :: !COMMITTED(0, p) && COMMITTED(1, p) -> take(d, p, 1)
    :: else -> requeue(d, p)
    fi
}

inline take(d, p, s) {
    own_shard[X(d, p)] = s; own_seq[X(d, p)] = seq[AT(s, p)];
    phase[X(d, p)] = (deleted[p] -> RELEASING : BOUND)
}

/* --- the takeover --- */

inline begin_takeover() {
    takeover == BEFORE;
    takeover = GRANT;
    journal_term = TERM(1);
    sure[0] = 0; sure[1] = 0; sure[2] = 0;
    shard_of[0] = 0; shard_of[1] = 0; shard_of[2] = 0;
#ifdef TAKEOVER_WITHOUT_FENCING
    takeover = READ; /* workers get new epochs when they register, which is later */
    raise_term(0);
    raise_term(1)
#endif
}

inline raise_term(s) {
    term[s] = TERM(1)
}

inline fence() {
    GRANT <= takeover && takeover < READ;
    at = takeover - GRANT;
    raise_term(at / WORKERS);
    grant(at / WORKERS, at % WORKERS, EPOCH(1), TERM(1));
    takeover++
}

inline read_reservations() {
    takeover == READ || takeover == READ + 1;
    at = takeover - READ;
    find(0);
    find(1);
    find(2);
    takeover++;
    if
    :: takeover == SERVING ->
        recover(0);
        recover(1);
        recover(2);
        fenced[0] = EPOCH(0); /* the list is final: what the old one gave out cannot be committed */
        fenced[1] = EPOCH(0)
    :: else
    fi
}

/* Of two reservations, one a late copy, the confirmed one counts. The other's lease ends. */
inline find(p) {
    lookup(at, p, one_state, one_seq);
    if
    :: one_state > found_state[p] -> found_state[p] = one_state; found_seq[p] = one_seq; found_shard[p] = at
    :: else
    fi
}

inline recover(p) {
    if
    :: found_state[p] >= ASSUMED ->
        own_shard[X(1, p)] = found_shard[p]; own_seq[X(1, p)] = found_seq[p];
        phase[X(1, p)] = (deleted[p] -> RELEASING : BOUND)
    :: else -> phase[X(1, p)] = (deleted[p] -> DELETED : QUEUED)
    fi;
    found_state[p] = ABSENT; found_seq[p] = 0; found_shard[p] = 0
}

/* Only the fault: the workers register with a dispatcher that serves already. */
inline register(w) {
    takeover == SERVING && granted[OF(1, w)] < EPOCH(1);
    grant(0, w, EPOCH(1), TERM(1));
    grant(1, w, EPOCH(1), TERM(1))
}

/* --- leases --- */

inline expire(s, p) {
    MAY_REAP(s, p) && (!AWAITED(s, p, seq[AT(s, p)]) || expiries < EXPIRIES);
    if
    :: AWAITED(s, p, seq[AT(s, p)]) -> expiries++
    :: else
    fi;
    reap(s, p)
}

/* --- the processes --- */

#define FOR_PODS(d, step) :: atomic { step(d, 0) } :: atomic { step(d, 1) } :: atomic { step(d, 2) }
#define EVERYWHERE(step) \
    :: atomic { step(0, 0) } :: atomic { step(0, 1) } :: atomic { step(0, 2) } \
    :: atomic { step(1, 0) } :: atomic { step(1, 1) } :: atomic { step(1, 2) }

active [DISPATCHERS] proctype Dispatcher() {
end:
    do
    FOR_PODS(_pid, give)
    FOR_PODS(_pid, outcome)
    FOR_PODS(_pid, confirm_bound)
    :: atomic { evict(_pid, 0) }
    FOR_PODS(_pid, delete)
    FOR_PODS(_pid, release_one)
    FOR_PODS(_pid, look_up_unsure)
    :: atomic { propose(_pid, 0, 0) } :: atomic { propose(_pid, 0, 1) }
    :: atomic { propose(_pid, 1, 0) } :: atomic { propose(_pid, 1, 1) }
    :: atomic { propose(_pid, 2, 0) } :: atomic { propose(_pid, 2, 1) }
    od
}

active proctype Takeover() {
end:
    do
    :: atomic { begin_takeover() }
    :: atomic { fence() }
    :: atomic { read_reservations() }
#ifdef TAKEOVER_WITHOUT_FENCING
    :: atomic { register(0) } :: atomic { register(1) }
#endif
    od
}

active proctype Ledger() {
end:
    do
    EVERYWHERE(expire)
    od
}

#define NO_RESERVATION(p) (!HELD(0, p) && !HELD(1, p))
#define IN_PLACE(p) (sure[p] && state[AT(shard_of[p], p)] == CONFIRMED && \
    KNOWS(1, shard_of[p], p, seq[AT(shard_of[p], p)]) && !HELD(OTHER(shard_of[p]), p))
#define QUIET(p) (((phase[X(1, p)] == QUEUED || phase[X(1, p)] == DELETED) && NO_RESERVATION(p)) || \
    (phase[X(1, p)] == BOUND && IN_PLACE(p)))

active proctype Quiet() {
    timeout -> assert(QUIET(0) && QUIET(1) && QUIET(2))
}
