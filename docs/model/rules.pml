/* Pods with a rule on other pods, over two shards: prepare, validate, commit or abort (ADR 12).
 *
 * Three pods bear required anti-affinity to each other, and all nodes are in one domain: at most one of them
 * may be committed at a time. A worker places a pod if its own view shows no other. The view follows each
 * shard's feed, which tells of a pod when it is committed. While parts are prepared, `seen` of that shard
 * ends before the first of them. Shard 0 validates by domain versions.
 *
 * Here the order of sequence numbers matters, so this model has a ledger of its own. Worker 0 has pods 0 and
 * 2, worker 1 has pod 1; each talks to its own resolver.
 *
 * Faults: DEATHS of resolvers between any two scripts, after which the worker sends its proposal again;
 * prepared parts that expire at any moment; DELETIONS of a committed pod. Pods are placed
 * PLACEMENTS times, all together. */

#ifndef DEATHS
#define DEATHS 1
#endif
#ifndef DELETIONS
#define DELETIONS 1
#endif
#ifndef PLACEMENTS
#define PLACEMENTS 4
#endif

#define SHARDS 2
#define WORKERS 2
#define PODS 3
#define OF(w, s) ((w) * SHARDS + (s))

/* --- the ledger --- */
#define ABSENT 0
#define PREPARED 1
#define COMMITTED 2
byte state[PODS], shard_of[PODS], prepared_seq[PODS];
byte last_seq[SHARDS];

/* The domain's version: for each shard the newest placement of the worker that placed last, that worker, and
 * the newest of all others. */
#define NOBODY 2
byte newest[SHARDS], newest_of_others[SHARDS];
byte placed_by[SHARDS] = NOBODY;

/* --- workers --- */
bit shown[WORKERS * PODS];   /* the feed has told of this pod */
bit assumed[WORKERS * PODS]; /* its own, told by the verdict, and not yet by the feed */
byte seen[WORKERS * SHARDS];

/* A worker's only undecided proposal: its pod, its shard, and how far the worker saw when it placed the pod. */
#define NONE 3
byte proposed[WORKERS] = NONE;
byte to_shard[WORKERS];
byte proposed_seen[WORKERS * SHARDS];
bit deleted[PODS];
byte placements;

/* --- resolvers: the step of the worker's proposal --- */
#define WAITS 0
#define PREPARE 1
#define VALIDATE 2
#define COMMIT_PREPARED 3
#define ABORT 4
byte step[WORKERS];
byte known_seq[WORKERS];
byte deaths, deletions;
hidden byte pod, s_of, first_prepared;

#define AT_MOST_ONE ((state[0] == COMMITTED) + (state[1] == COMMITTED) + (state[2] == COMMITTED) <= 1)

#define POD_OF(w, p) ((w) * PODS + (p))
#define SEES(w, p) (shown[POD_OF(w, p)] || assumed[POD_OF(w, p)])

inline place(w, p, s) {
    (p) % 2 == w && proposed[w] == NONE && state[p] == ABSENT && !deleted[p] && placements < PLACEMENTS &&
        !SEES(w, 0) && !SEES(w, 1) && !SEES(w, 2);
    placements++;
    proposed[w] = p; to_shard[w] = s; step[w] = PREPARE;
    proposed_seen[OF(w, 0)] = seen[OF(w, 0)]; proposed_seen[OF(w, 1)] = seen[OF(w, 1)]
}

/* The verdict ends the proposal. */
inline decided(w) {
    proposed[w] = NONE; to_shard[w] = 0; step[w] = WAITS; known_seq[w] = 0;
    proposed_seen[OF(w, 0)] = 0; proposed_seen[OF(w, 1)] = 0
}

inline prepare(w) {
    step[w] == PREPARE;
    pod = proposed[w]; s_of = to_shard[w];
    if
    :: state[pod] == ABSENT ->
        last_seq[s_of]++;
        state[pod] = PREPARED; shard_of[pod] = s_of; prepared_seq[pod] = last_seq[s_of];
        known_seq[w] = prepared_seq[pod];
        step[w] = VALIDATE
    :: state[pod] == PREPARED -> known_seq[w] = prepared_seq[pod]; step[w] = VALIDATE /* DUPLICATE */
    :: state[pod] == COMMITTED -> assumed[POD_OF(w, pod)] = 1; decided(w)             /* DUPLICATE */
    fi
}

#define UNKNOWN(w, s) ((placed_by[s] != w && newest[s] > proposed_seen[OF(w, s)]) || \
    newest_of_others[s] > proposed_seen[OF(w, s)])

inline validate(w) {
    step[w] == VALIDATE;
    s_of = to_shard[w];
    if
#ifndef VALIDATE_NOTHING
    :: UNKNOWN(w, 0) || UNKNOWN(w, 1) -> step[w] = ABORT
#endif
    :: else ->
        if
        :: placed_by[s_of] != w ->
            if
            :: newest[s_of] > newest_of_others[s_of] -> newest_of_others[s_of] = newest[s_of]
            :: else
            fi;
            newest[s_of] = known_seq[w]; placed_by[s_of] = w
        :: placed_by[s_of] == w && newest[s_of] < known_seq[w] -> newest[s_of] = known_seq[w]
        :: else
        fi;
        step[w] = COMMIT_PREPARED
    fi
}

inline commit_prepared(w) {
    step[w] == COMMIT_PREPARED;
    pod = proposed[w];
    if
    :: state[pod] == PREPARED && prepared_seq[pod] == known_seq[w] ->
        last_seq[shard_of[pod]]++;
        state[pod] = COMMITTED; prepared_seq[pod] = 0;
        assert(AT_MOST_ONE);
        assumed[POD_OF(w, pod)] = 1
    :: else /* its lease has ended */
    fi;
    decided(w)
}

inline abort(w) {
    step[w] == ABORT;
    pod = proposed[w];
    if
    :: state[pod] == PREPARED && prepared_seq[pod] == known_seq[w] -> give_back(pod)
    :: else
    fi;
    decided(w)
}

inline give_back(p) {
    last_seq[shard_of[p]]++;
    state[p] = ABSENT; shard_of[p] = 0; prepared_seq[p] = 0
}

/* The worker sends its proposal again, as it was. */
inline die(w) {
    step[w] > PREPARE && deaths < DEATHS;
    deaths++;
    step[w] = PREPARE; known_seq[w] = 0
}

inline reap(p) {
    state[p] == PREPARED;
    give_back(p)
}

inline release(p) {
    state[p] == COMMITTED && deletions < DELETIONS;
    deletions++;
    give_back(p);
    deleted[p] = 1
}

#ifdef CONFIRM_PREPARED
/* A look-up takes a prepared reservation for a place. */
inline confirm(p) {
    state[p] == PREPARED;
    state[p] = COMMITTED; prepared_seq[p] = 0;
    assert(AT_MOST_ONE)
}
#endif

/* --- the feed --- */

inline note_prepared(p, s) {
    if
    :: state[p] == PREPARED && shard_of[p] == s && prepared_seq[p] < first_prepared ->
        first_prepared = prepared_seq[p]
    :: else
    fi
}

inline tell(w, p, s) {
    if
    :: shard_of[p] == s && state[p] == COMMITTED -> shown[POD_OF(w, p)] = 1; assumed[POD_OF(w, p)] = 0
    :: state[p] == ABSENT -> shown[POD_OF(w, p)] = 0; assumed[POD_OF(w, p)] = 0
    :: else
    fi
}

/* Follow a shard's feed to its end. To follow it in part is to have followed it before. */
inline follow(w, s) {
    first_prepared = last_seq[s] + 1;
#ifndef SEEN_PAST_PREPARED
    note_prepared(0, s); note_prepared(1, s); note_prepared(2, s);
#endif
    seen[OF(w, s)] = first_prepared - 1;
    tell(w, 0, s); tell(w, 1, s); tell(w, 2, s)
}

#define BEHIND(w, s) (seen[OF(w, s)] < last_seq[s])

active [WORKERS] proctype Worker() {
end:
    do
    :: atomic { place(_pid, 0, 0) } :: atomic { place(_pid, 0, 1) }
    :: atomic { place(_pid, 1, 0) } :: atomic { place(_pid, 1, 1) }
    :: atomic { place(_pid, 2, 0) } :: atomic { place(_pid, 2, 1) }
    :: atomic { BEHIND(_pid, 0) -> follow(_pid, 0) }
    :: atomic { BEHIND(_pid, 1) -> follow(_pid, 1) }
    od
}

active proctype Resolvers() {
end:
    do
    :: atomic { prepare(0) } :: atomic { prepare(1) }
    :: atomic { validate(0) } :: atomic { validate(1) }
    :: atomic { commit_prepared(0) } :: atomic { commit_prepared(1) }
    :: atomic { abort(0) } :: atomic { abort(1) }
    :: atomic { die(0) } :: atomic { die(1) }
    od
}

active proctype Ledger() {
end:
    do
    :: atomic { reap(0) } :: atomic { reap(1) } :: atomic { reap(2) }
    :: atomic { release(0) } :: atomic { release(1) } :: atomic { release(2) }
#ifdef CONFIRM_PREPARED
    :: atomic { confirm(0) } :: atomic { confirm(1) } :: atomic { confirm(2) }
#endif
    od
}

active proctype Quiet() {
    timeout -> assert(state[0] != PREPARED && state[1] != PREPARED && state[2] != PREPARED &&
        proposed[0] == NONE && proposed[1] == NONE)
}
