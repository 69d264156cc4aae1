// Does nothing in a container: for as long as its argument says, as "2s", or until it is told to end.
package main

import (
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM, syscall.SIGINT)
	var over <-chan time.Time
	if len(os.Args) > 1 {
		long, err := time.ParseDuration(os.Args[1])
		if err != nil {
			log.Fatal(err)
		}
		over = time.After(long)
	}
	select {
	case <-told:
	case <-over:
	}
}
