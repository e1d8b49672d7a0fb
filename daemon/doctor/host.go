package doctor

import (
	"fmt"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// host reports what the host gives sandboxes and refuses the daemon. Nothing has to be done
// about it for sandboxes to work.
func (x *examination) host() {
	if x.info.Remapped() {
		x.add(&agboxv1.DoctorFinding{
			Action: leave, Kind: host, Name: "user namespaces",
			Why: fmt.Sprintf("The engine gives containers user namespaces: root in a sandbox is user %d on the host, which is the better wall. "+
				"Mounted files of other users belong to nobody in there: copy them instead if a command must change them.", x.info.RootUID),
		})
	}
	if err := x.polling(); err != nil {
		x.add(&agboxv1.DoctorFinding{
			Action: leave, Kind: host, Name: "inotify",
			Why: fmt.Sprintf("The kernel has no inotify instance or watch left for this user (%v), so output is polled and arrives up to 0.1 s later. "+
				"A sandbox whose processes run as this user may use them up: end it, or raise the limits: sysctl fs.inotify.max_user_instances=1024 fs.inotify.max_user_watches=1048576.", err),
		})
	}
	if err := x.loop.Unguarded(); err != nil {
		x.add(&agboxv1.DoctorFinding{
			Action: leave, Kind: host, Name: "host addresses",
			Why: err.Error() + " Services of this machine that listen on all addresses, and the metadata of a cloud, can be reached from every sandbox meanwhile.",
		})
	}
}

// ownEngine shows which engine has the containers.
func (x *examination) ownEngine() {
	if x.address != "" {
		x.add(&agboxv1.DoctorFinding{
			Action: leave, Kind: engineItself, Name: x.address,
			Why: fmt.Sprintf("It is the engine of this install. Its address is %s.", x.addressFrom),
		})
	}
}
