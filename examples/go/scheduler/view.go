package scheduler

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"golang.org/x/crypto/blake2b"
	"google.golang.org/protobuf/proto"

	"hoss.dev/examples/hossv1"
)

// As in hoss/wire/columns.py, which describes the columns.
const (
	flagGone          = 1
	flagUnschedulable = 2
	flagQuarantined   = 8
	accountHead       = 24 // bytes before the amounts
	cardBytes         = 32
	mostNodes         = 5_000_000
)

var baseResources = []string{"cpu", "memory", "ephemeral-storage", "pods", "hugepages-2Mi", "hugepages-1Gi"}

const podsResource = 3

type account struct {
	flags   uint32
	amounts []int64 // allocatable and requested of each resource, in turn
}

// proposedPods count on their nodes until the view shows them.
type proposedPods struct {
	shard    uint32
	nodes    []int
	requests [][]int64 // by pod
	live     []bool    // by pod: still counted
}

// committedPods are shown by the feed from seq on.
type committedPods struct {
	seq  uint64
	pods *proposedPods
}

// repellers are the placed pods of one group with required anti-affinity.
type repellers struct {
	terms []*hossv1.PodAffinityTerm
	pods  map[int]int // by node
}

type admission struct {
	spec  *hossv1.PodSpec
	scope string
}

// A view is what the feed said of the nodes, and what was proposed and is not yet shown there.
type view struct {
	resources []string
	shards    uint32 // 0: not known yet
	seqs      map[uint32]uint64
	accounts  []account
	nodes     []*hossv1.NodeSpec
	version   int       // of nodes
	assumed   [][]int64 // by resource, then by node
	cards     map[int][]byte
	admitting map[admission][]bool // of this version
	at        int                  // the version of admitting
	repelling map[string]*repellers
	holds     map[uint32]map[uint64]bool
	committed map[uint32][]committedPods
}

func newView() *view {
	return &view{
		resources: slices.Clone(baseResources),
		assumed:   make([][]int64, len(baseResources)),
		seqs:      map[uint32]uint64{},
		cards:     map[int][]byte{},
		repelling: map[string]*repellers{},
		holds:     map[uint32]map[uint64]bool{},
		committed: map[uint32][]committedPods{},
	}
}

// complete: it has every shard.
func (v *view) complete() bool { return v.shards > 0 && len(v.seqs) == int(v.shards) }

// seen is the seq up to which all pods are known: those of a prepared commit come later.
func (v *view) seen(shard uint32) uint64 {
	seq := v.seqs[shard]
	for hold := range v.holds[shard] {
		seq = min(seq, hold-1)
	}
	return seq
}

// caughtUp: the view is at these positions or later.
func (v *view) caughtUp(positions map[uint32]uint64) bool {
	for shard, seq := range positions {
		if v.seqs[shard] < seq {
			return false
		}
	}
	return true
}

// digest of the shard's part of the feed: the ledger's own at the same seq.
func (v *view) digest(shard uint32) uint64 {
	var alive []int
	used := 0
	for node := int(shard); node < len(v.nodes); node += int(max(v.shards, 1)) {
		if v.accounts[node].flags&flagGone != 0 {
			continue
		}
		alive = append(alive, node)
		for position, amount := range v.accounts[node].amounts {
			if amount != 0 {
				used = max(used, position/2+1)
			}
		}
	}
	hash, _ := blake2b.New(8, nil) // fails for long keys alone
	write := func(value any) { _ = binary.Write(hash, binary.LittleEndian, value) }
	for _, node := range alive {
		write(uint32(node))
	}
	for _, node := range alive {
		write(v.accounts[node].flags & flagUnschedulable)
	}
	for _, node := range alive {
		amounts := make([]int64, 2*used)
		copy(amounts, v.accounts[node].amounts)
		write(amounts)
	}
	carded := slices.DeleteFunc(alive, func(node int) bool { return v.cards[node] == nil })
	for _, node := range carded {
		write(uint32(node))
	}
	for _, node := range carded {
		write(v.cards[node])
	}
	return binary.LittleEndian.Uint64(hash.Sum(nil))
}

// apply takes in one message of the feed.
func (v *view) apply(message *hossv1.FeedMessage) error {
	v.shards = max(v.shards, message.Shards)
	for _, name := range message.Schema {
		if !slices.Contains(v.resources, name) {
			v.resources = append(v.resources, name)
			v.assumed = append(v.assumed, make([]int64, len(v.nodes)))
		}
	}
	if message.Snapshot {
		v.clear(message.Shard)
	}
	for _, entry := range message.Nodes {
		if err := v.grow(entry.Index); err != nil {
			return err
		}
		v.nodes[entry.Index] = entry.Spec
		if entry.Removed {
			v.nodes[entry.Index] = nil
		}
		delete(v.cards, int(entry.Index)) // what it has now comes with its account
		v.version++
	}
	if err := v.put(message.Accounts); err != nil {
		return err
	}
	for _, run := range message.Groups {
		if err := v.count(run); err != nil {
			return err
		}
	}
	v.seqs[message.Shard] = message.Seq
	if message.Snapshot || v.holds[message.Shard] == nil {
		v.holds[message.Shard] = map[uint64]bool{}
	}
	for _, seq := range message.Holds {
		v.holds[message.Shard][seq] = true
	}
	for _, seq := range message.EndedHolds {
		delete(v.holds[message.Shard], seq)
	}
	v.endShown(message.Shard)
	return nil
}

func (v *view) grow(index uint32) error {
	if index >= mostNodes {
		return fmt.Errorf("node index %d where there are up to %d", index, mostNodes)
	}
	for len(v.nodes) <= int(index) {
		v.nodes = append(v.nodes, nil)
		v.accounts = append(v.accounts, account{flags: flagGone})
		for resource := range v.assumed {
			v.assumed[resource] = append(v.assumed[resource], 0)
		}
		v.version++
	}
	return nil
}

func (v *view) clear(shard uint32) {
	for node := int(shard); node < len(v.nodes); node += int(max(v.shards, 1)) {
		v.accounts[node] = account{flags: flagGone}
		v.nodes[node] = nil
		delete(v.cards, node)
		for _, group := range v.repelling {
			delete(group.pods, node)
		}
	}
	v.version++
}

func (v *view) put(accounts *hossv1.Accounts) error {
	size := accountHead + 16*int(accounts.GetResources())
	records, cards := accounts.GetRecords(), accounts.GetCards()
	indexes, carded := column32(accounts.GetIndexes()), column32(accounts.GetCardIndexes())
	if len(records) != size*len(indexes) || len(cards) != cardBytes*len(carded) {
		return fmt.Errorf("%d bytes for %d accounts", len(records), len(indexes))
	}
	for position, index := range indexes {
		if err := v.grow(index); err != nil {
			return err
		}
		record := records[position*size : (position+1)*size]
		amounts := make([]int64, 2*len(v.resources))
		for number := range min(len(amounts), 2*int(accounts.Resources)) {
			amounts[number] = int64(binary.LittleEndian.Uint64(record[accountHead+8*number:]))
		}
		v.accounts[index] = account{binary.LittleEndian.Uint32(record[16:]), amounts}
	}
	for position, index := range carded {
		v.cards[int(index)] = cards[position*cardBytes : (position+1)*cardBytes]
	}
	return nil
}

func (v *view) count(run *hossv1.GroupRun) error {
	group := &hossv1.PodGroup{}
	if err := proto.Unmarshal(run.Group, group); err != nil {
		return fmt.Errorf("a group of the feed: %w", err)
	}
	terms := group.GetAffinity().GetAntiRequired()
	if len(terms) == 0 {
		return nil
	}
	key := string(run.Group)
	if v.repelling[key] == nil {
		v.repelling[key] = &repellers{terms, map[int]int{}}
	}
	pods := v.repelling[key].pods
	for _, node := range column32(run.Nodes) {
		if run.Gone {
			pods[int(node)]--
		} else {
			pods[int(node)]++
		}
		if pods[int(node)] == 0 {
			delete(pods, int(node))
		}
	}
	if len(pods) == 0 {
		delete(v.repelling, key)
	}
	return nil
}

// assume: they are proposed.
func (v *view) assume(pods *proposedPods) {
	pods.live = make([]bool, len(pods.nodes))
	for row := range pods.live {
		pods.live[row] = true
		v.add(pods, row, 1)
	}
}

// forget: the ledger does not have this pod, or it is elsewhere.
func (v *view) forget(pods *proposedPods, row int) {
	if pods.live[row] {
		pods.live[row] = false
		v.add(pods, row, -1)
	}
}

func (v *view) forgetAll(pods *proposedPods) {
	for row := range pods.nodes {
		v.forget(pods, row)
	}
}

func (v *view) add(pods *proposedPods, row int, sign int64) {
	for resource, amount := range pods.requests[row] {
		v.assumed[resource][pods.nodes[row]] += sign * amount
	}
}

// commit: what is live of them counts until the feed gets to seq.
func (v *view) commit(pods *proposedPods, seq uint64) {
	v.committed[pods.shard] = append(v.committed[pods.shard], committedPods{seq, pods})
	v.endShown(pods.shard)
}

func (v *view) endShown(shard uint32) {
	v.committed[shard] = slices.DeleteFunc(v.committed[shard], func(waiting committedPods) bool {
		shown := waiting.seq <= v.seqs[shard]
		if shown {
			v.forgetAll(waiting.pods)
		}
		return shown
	})
}

// snapshot is a copy of all nodes as they are now.
func (v *view) snapshot() *Snapshot {
	snapshot := &Snapshot{Resources: slices.Clone(v.resources), Nodes: slices.Clone(v.nodes)}
	for resource := range v.resources {
		allocatable, requested := make([]int64, len(v.nodes)), make([]int64, len(v.nodes))
		for node := range v.nodes {
			if amounts := v.accounts[node].amounts; 2*resource < len(amounts) {
				allocatable[node], requested[node] = amounts[2*resource], amounts[2*resource+1]
			}
			requested[node] += v.assumed[resource][node]
		}
		snapshot.Allocatable = append(snapshot.Allocatable, allocatable)
		snapshot.Requested = append(snapshot.Requested, requested)
	}
	return snapshot
}

// request is what a pod takes, by resource; false: it asks for something that no node ever offered.
func (v *view) request(spec *hossv1.PodSpec) ([]int64, bool) {
	request := make([]int64, len(v.resources))
	for _, asked := range spec.Requests {
		resource := slices.Index(v.resources, asked.Resource)
		if resource < 0 {
			return nil, false
		}
		request[resource] = asked.Amount
	}
	request[podsResource] = 1
	return request, true
}

// admitted are the nodes that let such a pod in, apart from room.
func (v *view) admitted(spec *hossv1.PodSpec, scope *hossv1.NodeScope) []bool {
	if v.at != v.version || v.admitting == nil {
		v.admitting, v.at = map[admission][]bool{}, v.version
	}
	key := admission{spec, scope.String()}
	if v.admitting[key] == nil {
		let := make([]bool, len(v.nodes))
		for index, node := range v.nodes {
			let[index] = node != nil && admits(spec, scope, node)
		}
		v.admitting[key] = let
	}
	mask := slices.Clone(v.admitting[key])
	shut := uint32(flagGone | flagUnschedulable | flagQuarantined)
	if toleratesCordon(spec) {
		shut = flagGone
	}
	for index := range mask {
		mask[index] = mask[index] && v.accounts[index].flags&shut == 0
	}
	labels := labelsOf(spec.Labels)
	for _, group := range v.repelling {
		for _, term := range group.terms {
			if repels(term, spec, labels) {
				v.shutDomains(mask, term.TopologyKey, group.pods)
			}
		}
	}
	return mask
}

// shutDomains closes the nodes in a domain of the key in which some of these pods are.
func (v *view) shutDomains(mask []bool, key string, pods map[int]int) {
	taken := map[string]bool{}
	for node := range pods {
		if value, has := labelsOf(v.nodes[node].GetLabels())[key]; has {
			taken[value] = true
		}
	}
	for index := range mask {
		if !mask[index] {
			continue
		}
		value, has := labelsOf(v.nodes[index].GetLabels())[key]
		mask[index] = !has || !taken[value]
	}
}

// forgetSpec: no class has it any more.
func (v *view) forgetSpec(spec *hossv1.PodSpec) {
	for key := range v.admitting {
		if key.spec == spec {
			delete(v.admitting, key)
		}
	}
}

// column32 reads a column of u32. What is left over of a broken one is not read.
func column32(data []byte) []uint32 {
	values := make([]uint32, len(data)/4)
	for position := range values {
		values[position] = binary.LittleEndian.Uint32(data[4*position:])
	}
	return values
}

func column[T uint8 | uint16 | uint32 | uint64 | int32 | int64](values []T) []byte {
	data, _ := binary.Append(nil, binary.LittleEndian, values) // fails for types without a size alone
	return data
}

func sortedKeys[K cmp.Ordered, V any](table map[K]V) []K {
	keys := make([]K, 0, len(table))
	for key := range table {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
