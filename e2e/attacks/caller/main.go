// Command caller runs inside a sandbox under attack. It calls the supervisor as the daemon
// does and asks it to start execs, which have log files on the host.
//
//	caller COUNT
//
// It prints how many of them were started.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/agbox/agbox/internal/paths"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest"
)

func main() {
	count, err := strconv.Atoi(os.Args[1])
	if err != nil {
		panic(err)
	}
	started, err := call(count)
	fmt.Println("started", started)
	if err != nil {
		fmt.Println("then", err)
	}
}

// call starts execs until one of them is refused.
func call(count int) (started int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := guest.Dial(ctx, paths.InContainerLink, func(context.Context, int) error { return nil })
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	for n := range count {
		_, err := conn.Start(ctx, &guestv1.StartRequest{ExecId: fmt.Sprintf("flood-%d", n), Command: []string{"true"}, Cwd: "/"})
		if err != nil {
			return n, err
		}
	}
	return count, nil
}
