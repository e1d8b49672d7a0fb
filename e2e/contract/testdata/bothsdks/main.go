// Command bothsdks uses package client and a Go package that others made for the published
// contract in one program. The test generates the second from the published table, with the
// names of proto files and messages that ours has too.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/agbox/agbox/client"
	published "github.com/agbox/agbox/e2e/contract/published"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func main() {
	if err := run(context.Background(), os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, socket string) error {
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	conn, err := grpc.NewClient("passthrough:///agboxd", grpc.WithContextDialer(dial), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	theirs := new(published.PingResponse)
	if err := conn.Invoke(ctx, "/agbox.v1.SandboxService/Ping", new(published.PingRequest), theirs); err != nil {
		return err
	}
	c, err := client.New(client.WithSocket(socket))
	if err != nil {
		return err
	}
	defer c.Close()
	ours, err := c.Ping(ctx)
	if err != nil {
		return err
	}
	if ours.GetVersion() == "" || ours.GetVersion() != theirs.GetVersion() {
		return fmt.Errorf("the versions are %q and %q", ours.GetVersion(), theirs.GetVersion())
	}
	// A detail of an error, which is a message by name.
	_, err = c.CreateSandbox(ctx, &agboxv1.CreateSandboxRequest{ConfigYaml: []byte("imagee: x\n")})
	var failure *client.Error
	if !errors.As(err, &failure) || len(failure.Problems) == 0 {
		return fmt.Errorf("a bad spec gives %w, without its problems", err)
	}
	global, err := protoregistry.GlobalTypes.FindMessageByName("agbox.v1.PingResponse")
	if err != nil || global != theirs.ProtoReflect().Type() {
		return fmt.Errorf("the global registry has %v, %w", global, err)
	}
	fmt.Println("both work")
	return nil
}
