// Package scheduler runs a scheduler written in Go beside those of HOSS: one type with Place, and Main.
//
// It does what hoss.sdk does for Python (docs/adr/0064-schedulers-of-others.md): it registers with the
// dispatcher, follows the nodes, proposes what Place answers, and reports what the ledger said.
package scheduler

import (
	"fmt"
	"time"

	"hoss.dev/examples/hossv1"
)

// NoNode in an answer: this pod is not placed now.
const NoNode = -1

// A Run is equal pods, one after the other in the batch.
type Run struct {
	Spec     *hossv1.PodSpec
	Request  []int64 // by resource, in schema units; one of "pods" included
	Admitted []bool  // by node: apart from room, each of them may go there
	First    int     // position of the first of them in the batch
	Count    int
}

// A Batch is pods to place, as runs, the highest priority first.
type Batch struct {
	Runs []Run
	Pods int // the sum of the runs' counts
}

// A Snapshot is all nodes at one moment, by index. An index may be without a node. Amounts are in schema
// units: cpu in thousandths, memory in bytes.
type Snapshot struct {
	Resources   []string
	Allocatable [][]int64          // by resource, then by node
	Requested   [][]int64          // the same, with what this scheduler has proposed
	Nodes       []*hossv1.NodeSpec // nil: no node has this index
}

// Free is a copy of what is left: by resource, then by node. Nodes that shrank have less than nothing.
func (s *Snapshot) Free() [][]int64 {
	free := make([][]int64, len(s.Allocatable))
	for resource := range free {
		free[resource] = make([]int64, len(s.Nodes))
		for node := range s.Nodes {
			free[resource][node] = s.Allocatable[resource][node] - s.Requested[resource][node]
		}
	}
	return free
}

// An Algorithm chooses nodes. Place answers a node index for each pod of the batch, in its order, or NoNode;
// budget is the time that the answer should take. It is called in a goroutine of its own, one call at a time,
// and must not change what it is given.
type Algorithm interface {
	Place(batch *Batch, snapshot *Snapshot, budget time.Duration) []int
}

// answered asks the algorithm; its answer, or what is wrong with it.
func answered(algorithm Algorithm, batch *Batch, snapshot *Snapshot, budget time.Duration) (
	nodes []int, err error,
) {
	defer func() {
		if problem := recover(); problem != nil {
			err = fmt.Errorf("panicked: %v", problem)
		}
	}()
	nodes = algorithm.Place(batch, snapshot, budget)
	return nodes, check(batch, snapshot, nodes)
}

// check says what is wrong with an answer, unless it names a node for each pod that admits the pod, and all
// of them together fit.
func check(batch *Batch, snapshot *Snapshot, nodes []int) error {
	if len(nodes) != batch.Pods {
		return fmt.Errorf("answered %d nodes for %d pods", len(nodes), batch.Pods)
	}
	free := snapshot.Free()
	for _, run := range batch.Runs {
		for position := run.First; position < run.First+run.Count; position++ {
			node := nodes[position]
			if node == NoNode {
				continue
			}
			if node < 0 || node >= len(snapshot.Nodes) {
				return fmt.Errorf("placed pod %d on node %d, and there are %d nodes", position, node, len(snapshot.Nodes))
			}
			if !run.Admitted[node] {
				return fmt.Errorf("placed a pod of %d equal ones on node %s, which does not admit it", run.Count,
					snapshot.Nodes[node].GetName())
			}
			for resource, amount := range run.Request {
				free[resource][node] -= amount
				if amount > 0 && free[resource][node] < 0 {
					return fmt.Errorf("overfilled node %s: it lacks %d %s", snapshot.Nodes[node].GetName(),
						-free[resource][node], snapshot.Resources[resource])
				}
			}
		}
	}
	return nil
}
