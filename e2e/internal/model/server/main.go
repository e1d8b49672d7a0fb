// The command server is the model of package model behind HTTP, for a service of a
// sandbox.
package main

import (
	"flag"
	"log"
	"net/http"
	"time"

	"github.com/agbox/agbox/e2e/internal/model"
)

func main() {
	listen := flag.String("listen", ":8080", "address")
	hold := flag.Bool("hold", false, "hold the answer that repairs the file in its middle, until POST /go")
	flag.Parse()
	s := &model.Server{Log: log.Printf, Hold: *hold}
	server := &http.Server{Addr: *listen, Handler: s.Handler(), ReadHeaderTimeout: time.Minute}
	log.Fatal(server.ListenAndServe())
}
