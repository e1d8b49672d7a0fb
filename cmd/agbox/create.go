package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

const (
	// acceptBound is how long the daemon may take to accept a sandbox, or its removal.
	// Only a signal cancels the request earlier: its outcome would be unknown.
	acceptBound = 15 * time.Second
	// hurriedBound is acceptBound for a removal after a signal.
	hurriedBound = 5 * time.Second
	// cleanUpBound is how long the removal of a failed or interrupted sandbox may take.
	cleanUpBound = time.Minute
)

type createOptions struct {
	specOptions
	id         string
	noWait     bool
	keepFailed bool
	// names are the names to try for a sandbox without one; nil means twoWords.
	names func(int) string
	// named is the name of the sandbox once it is accepted.
	named string
}

func (a *app) createCommand() *cobra.Command {
	var o createOptions
	var command []string
	cmd := &cobra.Command{
		Use:         "create [NAME] [flags] [-- COMMAND ARGS...]",
		Annotations: map[string]string{endsInText: "yes"},
		Short:       "Create a sandbox and wait until it is ready",
		Long: `Create a sandbox and wait until commands can run in it. Only the sandbox id goes
to stdout; progress and the output of post_create go to stderr. A sandbox that does
not become ready is removed.

A file, flags, or both describe the sandbox. The file is agbox.yaml in this
folder, unless --image is given or -f names another file. Flags override the file:
single values replace, maps merge by key, lists append. COMMAND replaces the
image's command and appends to a command in the file. The image's entrypoint gets it
as its arguments; --entrypoint replaces that. "agbox init" writes a starter file, and
"agbox help spec" explains every field.`,
		Example: `  agbox create demo --image debian:12 --label team=red --env CI=1 --idle-ttl 2h
  agbox create -f agbox.yaml --memory 4g --cpus 2 -p 8080:80
  agbox create --compose compose.yaml --compose-primary web --workspace .`,
		Args: func(cmd *cobra.Command, args []string) error {
			if dash := cmd.ArgsLenAtDash(); dash >= 0 {
				args, command = args[:dash], args[dash:]
			}
			return arguments(0, 1, "one NAME")(cmd, args)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.RunE = a.with(func(ctx context.Context, c *client.Client, args []string) error {
		input, err := orLeave(ctx, func() (*client.SpecInput, error) {
			return o.request(ctx, a, c, args[:len(args)-len(command)], command)
		})
		if err != nil {
			return err
		}
		return o.run(ctx, a, c, input)
	})
	o.addFlags(cmd)
	f := cmd.Flags()
	f.StringVar(&o.id, "id", "", "`ID` of the sandbox; with it, the command can be repeated safely")
	f.BoolVar(&o.noWait, "no-wait", false, "return as soon as the sandbox is accepted")
	f.BoolVar(&o.keepFailed, "keep-failed", false, "keep a sandbox that fails, for inspection")
	return cmd
}

// request makes the request for a sandbox, and chooses an id if none was given.
func (o *createOptions) request(ctx context.Context, a *app, c *client.Client, args, command []string) (*client.SpecInput, error) {
	name := ""
	if len(args) > 0 {
		name = args[0]
	}
	input, err := o.sandboxRequest(ctx, a, c, name, command)
	if err != nil {
		return nil, err
	}
	if input.Request.SandboxId = o.id; input.Request.SandboxId == "" {
		input.Request.SandboxId, input.Request.AnyId = client.NewID(), true
	}
	return input, nil
}

// run makes the sandbox and prints its id.
func (o *createOptions) run(ctx context.Context, a *app, c *client.Client, input *client.SpecInput) error {
	given := input.Request.GetCreateSpec().GetName()
	id, err := o.create(ctx, a, c, input)
	if err != nil {
		return err
	}
	if o.named != given && a.width() > 0 {
		a.say("The sandbox is called %s.", o.named)
	}
	return a.println(id)
}

// create makes the sandbox and returns its id.
func (o *createOptions) create(ctx context.Context, a *app, c *client.Client, input *client.SpecInput) (string, error) {
	in := input.Request
	// Starting a daemon may take long: a signal cancels this at once, but the request only after answerGrace.
	if err := c.Connect(ctx); err != nil {
		return "", err
	}
	belongTo(in)
	if err := o.agreed(ctx, a, c, input); err != nil {
		return "", err
	}
	a.goesOn.is("Sandbox %s may be made in the background: `agbox inspect %[1]s` shows it, `agbox rm -f %[1]s` removes it.", in.GetSandboxId())
	h, err := accepted(ctx, acceptBound, func(ctx context.Context) (*agboxv1.SandboxHandle, error) { return o.accept(ctx, c, in) })
	if err != nil {
		if errors.Is(err, client.ErrDaemonUnreachable) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
			a.say("It is unknown whether sandbox %s was accepted. `agbox inspect %[1]s` shows it; `agbox rm -f %[1]s` removes it.", in.GetSandboxId())
		}
		return "", err
	}
	id := h.GetSandboxId()
	o.named = h.GetName()
	if !o.noWait {
		if err := o.wait(ctx, a, c, h); err != nil {
			return "", err
		}
	}
	return id, nil
}

// accept makes the request, under a name that can be typed.
func (o *createOptions) accept(ctx context.Context, c *client.Client, in *agboxv1.CreateSandboxRequest) (*agboxv1.SandboxHandle, error) {
	// With an id the same request can be repeated, so it gets no other name each time.
	if o.id != "" || namesItself(ctx, c, in) {
		return c.CreateSandbox(ctx, in)
	}
	if o.names == nil {
		o.names = twoWords
	}
	return createNamed(ctx, c, in, o.names)
}

// agreed makes sure that a person agrees to what the files of the request ask of the host.
// It resolves first, which reports notices about ignored fields and missing tools, and all
// problems at once.
func (o *specOptions) agreed(ctx context.Context, a *app, c *client.Client, input *client.SpecInput) error {
	in := input.Request
	if !hasFiles(in) && len(in.GetCreateSpec().GetBuiltinTools()) == 0 {
		if in.GetCreateSpec().GetWorkspace() != nil {
			o.tellNotices(ctx, a, c, in)
		}
		return nil
	}
	out, err := o.resolved(ctx, a, c, in)
	if err != nil {
		return err
	}
	if hasFiles(in) && out.GetHostRequests() == nil {
		return errOldDaemon
	}
	// A person takes seconds to answer. Meanwhile a sandbox that shares the folder can let a
	// path lead elsewhere.
	in.Agreed = out.GetHostRequests()
	return o.agree(ctx, a, input, out.GetHostRequests())
}

// accepted makes a request that leaves something behind, within a bound. When ctx ends,
// the request has answerGrace more to complete.
func accepted[T any](ctx context.Context, bound time.Duration, request func(context.Context) (T, error)) (T, error) {
	ctx, cancel := outlasting(ctx, answerGrace)
	defer cancel()
	ctx, cancelTimeout := context.WithTimeout(ctx, bound)
	defer cancelTimeout()
	return request(ctx)
}

// wait waits until the sandbox is ready. It removes a sandbox that fails or is
// interrupted.
func (o *createOptions) wait(ctx context.Context, a *app, c *client.Client, h *agboxv1.SandboxHandle) error {
	id := h.GetSandboxId()
	p := &progress{shownLine: shownLine{app: a}, logs: func(exec string, o client.LogOptions) iter.Seq2[client.LogItem, error] {
		return c.FollowLogs(ctx, exec, o)
	}}
	_, err := c.WaitReady(ctx, id, client.OnEventSince(h, p.show))
	p.clear()
	// Do not remove a sandbox that an earlier command created with the same --id.
	ours := o.id == "" || h.GetState() == agboxv1.SandboxState_SANDBOX_STATE_PENDING
	var failure *client.Error
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil && ours:
		a.say("Interrupted. Removing sandbox %s.", id)
		o.remove(ctx, a, c, id)
		return err
	case ours && errors.As(err, &failure) && failure.Metadata["sandbox_id"] == id && !errors.Is(err, client.ErrWrongState):
		a.say("%s", err)
		if o.keepFailed {
			a.say("The failed sandbox is kept. `agbox inspect %s` shows it; `agbox rm %s` removes it.", id, id)
		} else {
			o.remove(ctx, a, c, id)
		}
		return toldError{err}
	}
	a.say("Sandbox %s may exist. `agbox inspect %s` shows it; `agbox rm %s` removes it.", id, id, id)
	return err
}

// remove removes a failed or interrupted sandbox.
func (o *createOptions) remove(ctx context.Context, a *app, c *client.Client, id string) {
	if a.removeSandbox(ctx, c, id) {
		a.say("Sandbox %s was removed.", id)
	}
}

// removeSandbox removes a sandbox and waits until nothing of it runs, even if a signal has ended
// ctx. Another signal ends the wait. It prints what failed, and returns whether the
// sandbox is gone.
func (a *app) removeSandbox(ctx context.Context, c *client.Client, id string) (gone bool) {
	bound := acceptBound
	if ctx.Err() != nil {
		bound = hurriedBound
		var done func()
		ctx, done = a.interruptible(context.WithoutCancel(ctx))
		defer done()
	}
	_, err := accepted(ctx, bound, func(ctx context.Context) (struct{}, error) { return struct{}{}, c.DeleteSandbox(ctx, id) })
	switch {
	case errors.Is(err, client.ErrNotFound):
		return true
	case err != nil:
		a.say("Sandbox %s could not be removed: %v Try again with `agbox rm -f %[1]s`.", id, err)
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, cleanUpBound)
	defer cancel()
	if err := c.WaitEnded(ctx, id); err != nil {
		a.say("Sandbox %s is still being removed: %v `agbox rm -f %[1]s` waits for the end.", id, err)
		return false
	}
	return true
}

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
	return hasReason(err, agboxv1.ErrorReason_SANDBOX_NAME_EXISTS)
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

// agree makes sure that a person has agreed to what the files request of the host. It
// asks on a terminal, and fails without one.
func (o *specOptions) agree(ctx context.Context, a *app, input *client.SpecInput, asked *agboxv1.HostRequests) error {
	q := question(input, asked)
	if q == nil || asked.GetTrustedByPolicy() {
		return nil
	}
	store, err := newTrustStore()
	if err != nil {
		return err
	}
	known, before, err := store.trusted(*q)
	switch {
	case err != nil:
		return err
	case known, o.trust:
		return nil
	case !a.canAsk(*q):
		text, _ := requestScreen(*q, before, extent{})
		a.sayEach(strings.TrimSuffix(text, "\n"))
		remedy := "Run `agbox trust review " + shellWords([]string{q.Path}) + "`"
		if slices.ContainsFunc(asked.GetRequests(), func(r *agboxv1.HostRequest) bool { return r.GetFile() == "" }) {
			remedy = "Run this command" // it is not the file alone that asks
		}
		return usagef("%s requests the above, and you have not agreed to it. %s on a terminal, or give --trust.", printable(q.Path), remedy)
	}
	return a.askForTrust(ctx, store, *q, before)
}
