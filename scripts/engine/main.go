// Command engine implements the calls of the Docker Engine API that the scripts need, so that neither the docker
// command nor curl must be installed. It connects to DOCKER_HOST (unix:// or tcp://), or to /var/run/docker.sock if that
// is not set.
//
//	engine ping                    print the engine's version; exit 2 if access is denied, 1 if no engine answers
//	engine label IMAGE KEY         print the image's label, or an empty line if there is no such image or label
//	engine import IMAGE [CHANGE..] make IMAGE from the tar stream on stdin, with Dockerfile-like changes
//	engine tag SOURCE IMAGE        give an image a second name
//	engine find VALUE              print containers and networks that have a label with this value
//	engine kill VALUE              end these containers with SIGKILL
//	engine remove VALUE            remove them and the networks, running or not
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"
)

const (
	exitFailed = 1
	exitDenied = 2
	exitUsage  = 64

	// A healthy engine answers a ping in milliseconds. The timeout keeps a script from hanging on another one.
	pingTimeout = 5 * time.Second
	// An import copies the whole image to the engine's disk.
	callTimeout = 5 * time.Minute
)

func main() {
	err := run(os.Args[1:])
	switch {
	case err == nil:
	case errors.Is(err, errUsage):
		fmt.Fprintln(os.Stderr, "usage: engine ping | label IMAGE KEY | import IMAGE [CHANGE...] | tag SOURCE IMAGE | find VALUE | kill VALUE | remove VALUE")
		os.Exit(exitUsage)
	case errors.Is(err, fs.ErrPermission):
		fmt.Fprintln(os.Stderr, "engine:", err)
		os.Exit(exitDenied)
	default:
		fmt.Fprintln(os.Stderr, "engine:", err)
		os.Exit(exitFailed)
	}
}

var errUsage = errors.New("usage")

func run(args []string) error {
	if len(args) == 0 {
		return errUsage
	}
	e, err := connect(os.Getenv("DOCKER_HOST"))
	if err != nil {
		return err
	}
	verb, args := args[0], args[1:]
	switch {
	case verb == "ping" && len(args) == 0:
		return e.ping()
	case verb == "label" && len(args) == 2:
		return e.label(args[0], args[1])
	case verb == "import" && len(args) >= 1:
		return e.importImage(args[0], args[1:], os.Stdin)
	case verb == "tag" && len(args) == 2:
		return e.tag(args[0], args[1])
	case verb == "find" && len(args) == 1:
		return e.find(args[0], printObject)
	case verb == "kill" && len(args) == 1:
		return e.find(args[0], e.kill)
	case verb == "remove" && len(args) == 1:
		return e.find(args[0], e.remove)
	}
	return errUsage
}

type engine struct {
	base string
	http *http.Client
}

func connect(host string) (*engine, error) {
	if host == "" {
		host = "unix:///var/run/docker.sock"
	}
	scheme, addr, ok := strings.Cut(host, "://")
	if !ok {
		return nil, fmt.Errorf("DOCKER_HOST=%s is not of the form unix://PATH or tcp://HOST:PORT", host)
	}
	switch scheme {
	case "unix":
		dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", addr)
		}
		return &engine{base: "http://engine", http: &http.Client{Transport: &http.Transport{DialContext: dial}}}, nil
	case "tcp", "http":
		return &engine{base: "http://" + strings.TrimSuffix(addr, "/"), http: &http.Client{Transport: &http.Transport{}}}, nil
	}
	return nil, fmt.Errorf("DOCKER_HOST=%s: only unix:// and tcp:// are supported", host)
}

// call sends a request without an API version in its path, which every engine treats as its newest version. It decodes
// the reply into out unless out is nil. found is false for status 404.
func (e *engine) call(timeout time.Duration, method, path string, query url.Values, body io.Reader, out any) (found bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, e.base+path+"?"+query.Encode(), body)
	if err != nil {
		return false, err
	}
	resp, err := e.http.Do(req)
	if err != nil {
		return false, err
	}
	defer func() { _ = resp.Body.Close() }()
	reply, err := io.ReadAll(resp.Body)
	if err != nil {
		return false, err
	}
	if resp.StatusCode == http.StatusNotFound {
		return false, nil
	}
	if resp.StatusCode >= http.StatusMultipleChoices {
		return false, fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, strings.TrimSpace(string(reply)))
	}
	switch out := out.(type) {
	case nil:
		return true, nil
	case *[]byte:
		*out = reply
		return true, nil
	}
	return true, json.Unmarshal(reply, out)
}

func (e *engine) ping() error {
	var v struct{ Version, APIVersion string }
	found, err := e.call(pingTimeout, http.MethodGet, "/version", nil, nil, &v)
	if err == nil && (!found || v.APIVersion == "") {
		err = errors.New("the answer does not come from a Docker engine")
	}
	if err != nil {
		return err
	}
	fmt.Println(v.Version)
	return nil
}

func (e *engine) label(image, key string) error {
	var v struct {
		Config struct{ Labels map[string]string }
	}
	if _, err := e.call(callTimeout, http.MethodGet, "/images/"+image+"/json", nil, nil, &v); err != nil {
		return err
	}
	fmt.Println(v.Config.Labels[key])
	return nil
}

func (e *engine) importImage(image string, changes []string, tar io.Reader) error {
	repo, tag := splitTag(image)
	query := url.Values{"fromSrc": {"-"}, "repo": {repo}, "tag": {tag}, "changes": changes}
	var progress []byte
	if _, err := e.call(callTimeout, http.MethodPost, "/images/create", query, tar, &progress); err != nil {
		return err
	}
	// The engine sends status 200 before it reads the stream, so a failure is in the progress messages.
	for msg := range strings.Lines(string(progress)) {
		var m struct{ Error string }
		if json.Unmarshal([]byte(msg), &m) == nil && m.Error != "" {
			return fmt.Errorf("import %s: %s", image, m.Error)
		}
	}
	return nil
}

func (e *engine) tag(source, image string) error {
	repo, tag := splitTag(image)
	found, err := e.call(callTimeout, http.MethodPost, "/images/"+source+"/tag", url.Values{"repo": {repo}, "tag": {tag}}, nil, nil)
	if err == nil && !found {
		err = fmt.Errorf("there is no image %s", source)
	}
	return err
}

func splitTag(image string) (repo, tag string) {
	repo, tag, _ = strings.Cut(image, ":")
	if tag == "" {
		tag = "latest"
	}
	return repo, tag
}

// object is a container or a network in the reply of a list call.
type object struct {
	kind   string
	ID     string `json:"Id"`
	Name   string
	Names  []string
	Labels map[string]string
}

func (o object) String() string {
	return o.kind + " " + strings.TrimPrefix(o.Name+strings.Join(o.Names, ","), "/")
}

// find visits containers first, because a network can be removed only after them.
func (e *engine) find(value string, visit func(object) error) error {
	for _, list := range []struct{ kind, path string }{{"container", "/containers/json"}, {"network", "/networks"}} {
		var objects []object
		if _, err := e.call(callTimeout, http.MethodGet, list.path, url.Values{"all": {"1"}}, nil, &objects); err != nil {
			return err
		}
		for _, o := range objects {
			o.kind = list.kind
			if !slices.Contains(slices.Collect(maps.Values(o.Labels)), value) {
				continue
			}
			if err := visit(o); err != nil {
				return err
			}
		}
	}
	return nil
}

func printObject(o object) error {
	_, err := fmt.Println(o)
	return err
}

func (e *engine) kill(o object) error {
	if o.kind != "container" {
		return nil
	}
	if _, err := e.call(callTimeout, http.MethodPost, "/containers/"+o.ID+"/kill", url.Values{"signal": {"KILL"}}, nil, nil); err != nil {
		return err
	}
	_, err := fmt.Println("killed", o)
	return err
}

func (e *engine) remove(o object) error {
	query := url.Values{}
	if o.kind == "container" {
		query.Set("force", "1")
		query.Set("v", "1")
	}
	if _, err := e.call(callTimeout, http.MethodDelete, "/"+o.kind+"s/"+o.ID, query, nil, nil); err != nil {
		return err
	}
	_, err := fmt.Println("removed", o)
	return err
}
