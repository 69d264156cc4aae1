// A scheduler of your own in Go: each pod goes to the node with the most free cpu.
package main

import (
	"time"

	"hoss.dev/examples/scheduler"
)

const cpu = 0 // row of a snapshot

type emptiestFirst struct{}

func (emptiestFirst) Place(batch *scheduler.Batch, snapshot *scheduler.Snapshot, budget time.Duration) []int {
	free, nodes := snapshot.Free(), make([]int, 0, batch.Pods)
	for _, run := range batch.Runs {
		for range run.Count {
			best := scheduler.NoNode
			for node, admitted := range run.Admitted {
				if admitted && fits(run.Request, free, node) && (best < 0 || free[cpu][node] > free[cpu][best]) {
					best = node
				}
			}
			if nodes = append(nodes, best); best >= 0 {
				for resource, amount := range run.Request {
					free[resource][best] -= amount
				}
			}
		}
	}
	return nodes
}

func fits(request []int64, free [][]int64, node int) bool {
	for resource, amount := range request {
		if amount > 0 && free[resource][node] < amount {
			return false
		}
	}
	return true
}

func main() { scheduler.Main(emptiestFirst{}) }
