{{- define "qlogd.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "qlogd.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "qlogd.labels" -}}
{{ include "qlogd.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end -}}

{{- /* The Raft addresses of the nodes that form the cluster. */ -}}
{{- define "qlogd.join" -}}
{{- $name := include "qlogd.fullname" . -}}
{{- $all := list -}}
{{- range $i := until (int .Values.replicas) -}}
{{- $all = append $all (printf "%s-%d.%s-nodes:7071" $name $i $name) -}}
{{- end -}}
{{- join "," $all -}}
{{- end -}}
