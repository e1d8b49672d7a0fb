package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// nameTries bounds how many names are tried for a sandbox.
const nameTries = 100

// longestBase is how much of a folder's name is in that of its sandbox, in bytes.
const longestBase = 30

// numbered returns the n-th name, from 0, for the sandboxes of a folder and a preset:
// shop-claude, shop-claude-2. Without a folder, or with one whose name cannot be typed, it
// is claude.
func numbered(folder, preset string, n int) string {
	name := strings.TrimRight(slug(filepath.Base(folder), longestBase), "_.-")
	name = strings.TrimPrefix(name+"-"+preset, "-")
	if n > 0 {
		name += fmt.Sprintf("-%d", n+1)
	}
	return name
}

// twoWords returns a name such as calm-otter.
func twoWords(int) string {
	return adjectives[rand.IntN(len(adjectives))] + "-" + animals[rand.IntN(len(animals))] //nolint:gosec // no secret
}

// createNamed makes the request under the first of the names that no other sandbox has, and
// sets it in the request.
func createNamed(ctx context.Context, c *client.Client, in *agboxv1.CreateSandboxRequest, names func(int) string) (h *agboxv1.SandboxHandle, err error) {
	for n := range nameTries {
		in.CreateSpec.Name = names(n)
		if h, err = c.CreateSandbox(ctx, in); !nameTaken(err) {
			break
		}
	}
	return h, err
}

// nameTaken reports whether another sandbox has the name that was asked for.
func nameTaken(err error) bool {
	var e *client.Error
	return errors.As(err, &e) && e.Reason == agboxv1.ErrorReason_SANDBOX_NAME_EXISTS.String()
}

// namesItself reports whether a request has a name, or takes it from a file.
func namesItself(ctx context.Context, c *client.Client, in *agboxv1.CreateSandboxRequest) bool {
	if in.GetCreateSpec().GetName() != "" || !hasFiles(in) {
		return in.GetCreateSpec().GetName() != ""
	}
	spec, _, err := resolveQuietly(ctx, c, in)
	return err != nil || spec.GetName() != "" // creating it reports the error
}

// adjectives and animals are short, easy to type and mean no harm together.
var (
	adjectives = strings.Fields(`able airy aqua bold brave brief bright brisk busy calm clear clever cool cosy crisp
	deft dry eager early easy even fair fast fine firm fond fresh glad gold good grand green happy hardy honest
	humble jolly keen kind large late light lively loyal lucky merry mild neat new nimble noble odd open pale plain
	polite proud quick quiet rapid rare ready red round royal safe sharp shiny short silent silver simple slow small
	smart smooth snug soft solid spry still strong sunny sure sweet swift tall tidy tiny true vast vivid warm wide wise witty young`)
	animals = strings.Fields(`ant badger bat bear beaver bee bison boar camel carp cat clam cod colt coot crab crane
	crow deer dingo dove duck eagle eel elk emu falcon ferret finch fox frog gecko goat goose gull hare hawk hen heron
	horse ibex ibis jay kiwi koala lamb lark lemur llama lynx magpie marten mink mole moose moth mouse mule newt otter
	owl ox panda parrot perch pika plover pony puffin puma quail rabbit raven robin rook salmon seal shrew skunk sloth
	snail sparrow squid stoat stork swan swift tapir tern tiger toad trout turtle viper vole walrus wasp weasel whale
	wolf wombat wren yak zebra`)
)
