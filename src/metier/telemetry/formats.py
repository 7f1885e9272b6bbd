"""Secrets with a known format: vendor keys, passwords in addresses, private keys. Pure.

Prefixes are specific enough not to match ordinary text. Every expression starts at the start of a word and repeats one
character class, so matching is linear. Ordinary text is cheap: few of its words are as long as a key, and even fewer
have a key's prefix.
"""

import functools
import re
from collections.abc import Iterator
from typing import NamedTuple

from metier.telemetry.secret_names import is_code_or_placeholder

LONG_WORD = 15
"""Minimum length of every key that is one word."""


class KeyFormat(NamedTuple):
    kind: str
    literals: tuple[str, ...]
    """Every match starts with one of them, if the format is anchored."""
    expression: str
    """The secret is group `v`, or the whole match without such a group."""
    anchored: bool = True

    @property
    def regex(self) -> re.Pattern[str]:
        # Compiled on first use: most processes need few of them.
        return _compile(self.expression)


@functools.cache
def _compile(expression: str) -> re.Pattern[str]:
    return re.compile(expression)


_WORD_CHARACTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"
_START = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))"
"""The start of a word, also after an escaped line feed."""
_LONE = r"(?:(?<![A-Za-z0-9_-])|(?<=\\[nrt]))"
_END = r"(?![A-Za-z0-9])"
_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"

_AFTER_PREFIX: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("anthropic", ("sk-ant-",), r"[A-Za-z0-9_-]{16,}"),
    ("openai", ("sk-proj-", "sk-svcacct-", "sk-admin-", "sk-None-"), r"[A-Za-z0-9_-]{16,}"),
    ("openrouter", ("sk-or-v1-",), r"[A-Za-z0-9]{32,}"),
    ("github", ("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), r"[A-Za-z0-9]{30,}"),
    ("github", ("github_pat_",), r"[A-Za-z0-9_]{22,}"),
    (
        "gitlab",
        ("glpat-", "gldt-", "glrt-", "glcbt-", "glft-", "glptt-", "glagent-", "gloas-", "glwt-"),
        r"[A-Za-z0-9_.-]{20,}",
    ),
    ("gitlab", ("glsoat-", "glimt-", "glffct-", "GR1348941"), r"[A-Za-z0-9_-]{20,}"),
    (
        "slack",
        ("xoxb-", "xoxp-", "xoxa-", "xoxr-", "xoxs-", "xoxo-", "xoxe-", "xoxc-", "xoxd-"),
        r"[A-Za-z0-9%.-]{10,}",
    ),
    ("slack", ("xoxe.xoxp-", "xoxe.xoxb-", "xapp-"), r"[A-Za-z0-9-]{10,}"),
    ("stripe", ("sk_live_", "rk_live_", "sk_test_", "rk_test_", "sk_prod_", "rk_prod_"), r"[A-Za-z0-9]{16,}"),
    ("google", ("AIza",), r"[A-Za-z0-9_-]{35}"),
    ("google", ("GOCSPX-",), r"[A-Za-z0-9_-]{20,}"),
    ("google", ("ya29.",), r"[A-Za-z0-9_.-]{20,}"),
    ("npm", ("npm_",), r"[A-Za-z0-9]{36,}"),
    ("pypi", ("pypi-AgE",), r"[A-Za-z0-9_-]{32,}"),
    ("huggingface", ("hf_", "api_org_"), r"[A-Za-z0-9]{30,}"),
    ("digitalocean", ("dop_v1_", "doo_v1_", "dor_v1_"), r"[a-f0-9]{40,}"),
    ("shopify", ("shpat_", "shpca_", "shppa_", "shpss_", "shptka_"), r"[A-Fa-f0-9]{32}"),
    ("square", ("sq0atp-", "sq0csp-", "sq0idp-"), r"[A-Za-z0-9_-]{22,}"),
    ("databricks", ("dapi",), r"[a-f0-9]{32}(?:-\d)?"),
    ("vault", ("hvs.", "hvb.", "hvr."), r"[A-Za-z0-9_-]{20,}"),
    ("linear", ("lin_api_", "lin_oauth_"), r"[A-Za-z0-9]{32,}"),
    ("notion", ("ntn_",), r"[A-Za-z0-9]{40,}"),
    # With a digit, because names in code start with these letters too.
    ("notion", ("secret_",), r"(?=[A-Za-z]*\d)[A-Za-z0-9]{43}(?![A-Za-z0-9_])"),
    ("postman", ("PMAK-",), r"[A-Fa-f0-9]{24}-[A-Fa-f0-9]{34}"),
    ("age", ("AGE-SECRET-KEY-1",), r"[A-Z0-9]{50,}"),
    ("doppler", ("dp.pt.", "dp.st.", "dp.ct.", "dp.sa.", "dp.scim.", "dp.audit."), r"[A-Za-z0-9_.-]{32,}"),
    ("grafana", ("glsa_",), r"[A-Za-z0-9]{32}_[A-Fa-f0-9]{8}"),
    ("new-relic", ("NRAK-", "NRII-", "NRAA-", "NRRA-", "NRIQ-", "NRSP-"), r"[A-Za-z0-9_-]{22,}"),
    ("new-relic", ("NRJS-",), r"[a-f0-9]{19}"),
    ("figma", ("figd_", "figo_"), r"[A-Za-z0-9_-]{20,}"),
    ("docker", ("dckr_pat_", "dckr_oat_"), r"[A-Za-z0-9_-]{20,}"),
    ("atlassian", ("ATATT3", "ATCTT3", "ATBB"), r"[A-Za-z0-9_=-]{24,}"),
    ("bitbucket", ("BBDC-",), r"[A-Za-z0-9_-]{10}[A-Za-z0-9_+/-]{30,}"),
    ("pulumi", ("pul-",), r"[a-f0-9]{40}"),
    ("rubygems", ("rubygems_",), r"[a-f0-9]{48}"),
    ("cargo", ("cio",), r"(?=[A-Za-z]*\d)[A-Za-z0-9]{32}"),
    ("clojars", ("CLOJARS_",), r"[a-z0-9]{60}"),
    ("nuget", ("oy2",), r"(?=[a-z]*\d)[a-z0-9]{43}"),
    ("planetscale", ("pscale_tkn_", "pscale_pw_", "pscale_oauth_"), r"[A-Za-z0-9_=.-]{32,}"),
    ("supabase", ("sbp_", "sb_secret_"), r"[A-Za-z0-9_-]{20,}"),
    ("sentry", ("sntrys_", "sntryu_"), r"[A-Za-z0-9]{8}[A-Za-z0-9+/=_-]{32,}"),
    ("dynatrace", ("dt0c01.", "dt0s01.", "dt0s16."), r"[A-Z0-9]{24}\.[A-Z0-9]{64}"),
    ("easypost", ("EZAK", "EZTK"), r"[A-Za-z0-9]{54}"),
    ("flutterwave", ("FLWSECK_TEST-", "FLWSECK-"), r"[A-Za-z0-9]{12,}(?:-X)?"),
    ("frameio", ("fio-u-",), r"[A-Za-z0-9_=-]{60,}"),
    ("heroku", ("HRKU-",), r"[A-Za-z0-9_-]{36,}"),
    ("prefect", ("pnu_", "pnb_"), r"[A-Za-z0-9]{36}"),
    ("readme", ("rdme_",), r"[a-z0-9]{60,}"),
    ("sendinblue", ("xkeysib-", "xsmtpsib-"), r"[a-f0-9]{64}-[A-Za-z0-9]{16}"),
    ("shippo", ("shippo_live_", "shippo_test_"), r"[a-f0-9]{40}"),
    ("typeform", ("tfp_",), r"[A-Za-z0-9_.=-]{40,}"),
    ("groq", ("gsk_",), r"[A-Za-z0-9]{40,}"),
    ("replicate", ("r8_",), r"[A-Za-z0-9]{36,}"),
    ("perplexity", ("pplx-",), r"[A-Za-z0-9]{40,}"),
    ("xai", ("xai-",), r"[A-Za-z0-9]{60,}"),
    ("fireworks", ("fw_",), r"(?=[A-Za-z]*\d)[A-Za-z0-9]{22,}"),
    ("langsmith", ("lsv2_pt_", "lsv2_sk_"), r"[a-f0-9]{32}_[a-f0-9]{10}"),
    ("tavily", ("tvly-",), r"[A-Za-z0-9-]{20,}"),
    ("cloudflare", ("v1.0-",), r"[a-f0-9]{24}-[a-f0-9]{100,}"),
    ("contentful", ("CFPAT-",), r"[A-Za-z0-9_-]{40,}"),
    ("tailscale", ("tskey-",), r"(?:api|auth|client|scim|webhook)-[A-Za-z0-9]{8,}-[A-Za-z0-9]{16,}"),
    ("fly", ("fm1_", "fm1a_", "fm1r_", "fm2_", "fo1_"), r"[A-Za-z0-9]{10}[A-Za-z0-9+/=_,-]{22,}"),
    ("netlify", ("nfp_", "nfc_"), r"[A-Za-z0-9_]{36,}"),
    ("vercel", ("vcp_", "vck_"), r"[A-Za-z0-9]{24,}"),
    ("sourcegraph", ("sgp_",), r"(?:[a-f0-9]{16}_|local_)?[a-f0-9]{40}"),
    ("infracost", ("ico-",), r"[A-Za-z0-9]{32}"),
    ("duffel", ("duffel_live_", "duffel_test_"), r"[A-Za-z0-9_=-]{40,}"),
    ("plaid", ("access-sandbox-", "access-development-", "access-production-"), r"[0-9a-f]{8}-[0-9a-f-]{27}"),
    ("artifactory", ("AKC",), r"(?=[A-Za-z]*\d|x{10}|p[0-9A-Za-z])[A-Za-z0-9]{12,}(?![A-Za-z0-9])"),
    ("artifactory", ("AP",), r"(?:\d[A-Za-z0-9]{16,}|[A-F](?=[A-Za-z]*\d)[A-Za-z0-9]{30,})"),
    ("jfrog", ("cmVmdGtu",), r"[A-Za-z0-9]{56}"),
    ("alibaba", ("LTAI",), r"(?=[A-Za-z]*\d)[A-Za-z0-9]{12,24}"),
    ("tencent", ("AKID",), r"(?=[A-Za-z]*\d)[A-Za-z0-9]{28,36}"),
    ("yandex", ("AQVN",), r"[A-Za-z0-9_-]{35,38}"),
    ("volcengine", ("AKLT",), r"[A-Za-z0-9]{40,}={0,2}"),
    ("resend", ("re_",), r"[A-Za-z0-9]{6,12}_[A-Za-z0-9]{18,}" + _END),
    ("nvidia", ("nvapi-",), r"[A-Za-z0-9_-]{40,}"),
    ("pinecone", ("pcsk_",), r"[A-Za-z0-9]{4,8}_[A-Za-z0-9]{40,}"),
    ("vercel", ("vercel_blob_rw_",), r"[A-Za-z0-9]{12,}_[A-Za-z0-9]{20,}"),
    ("sonar", ("squ_", "sqp_", "sqa_"), r"[a-f0-9]{40}" + _END),
    ("dropbox", ("sl.",), r"(?:u\.)?(?=[A-Za-z_-]{0,60}\d)[A-Za-z0-9_-]{100,}"),
    ("hubspot", ("pat-",), r"[a-z]{2}\d-[0-9a-f]{8}-[0-9a-f-]{27}"),
    ("adobe", ("p8e-",), r"[A-Za-z0-9]{32}"),
    ("circleci", ("CCIPAT_", "CCIPRJ_"), r"[A-Za-z0-9]{20,}_[a-f0-9]{40}"),
    ("buildkite", ("bkua_", "bkaa_", "bkpt_"), r"[A-Za-z0-9_]{36,}"),
    ("elastic", ("essu_",), r"[A-Za-z0-9]{10}[A-Za-z0-9+/=]{22,}"),
    ("neon", ("napi_",), r"[A-Za-z0-9]{40,}"),
    ("render", ("rnd_",), r"(?=[A-Za-z]*\d)[A-Za-z0-9]{24,}" + _END),
    ("asana", ("asana_pat_",), r"[A-Za-z0-9]{20,}"),
    ("sumologic", ("sumo_",), r"[A-Za-z0-9]{40,}"),
    ("polar", ("polar_oat_", "polar_pat_"), r"[A-Za-z0-9_]{30,}"),
    ("clickup", ("pk_",), r"\d{6,10}_[A-Z0-9]{32}"),
    ("mercadopago", ("APP_USR-",), r"\d{10,}-\d{4,}-[a-f0-9]{32}-?_?[A-Z_]*\d*"),
    ("settlemint", ("sm_pat_", "sm_aat_", "sm_sat_"), r"[A-Za-z0-9]{16}"),
    ("openshift", ("sha256~",), r"[A-Za-z0-9_-]{43}"),
    ("wandb", ("wandb_v1_",), r"[A-Za-z0-9_]{40,}"),
    ("voyage", ("pa-",), r"(?=[A-Za-z_-]{0,40}\d)[A-Za-z0-9_-]{43}" + _END),
    ("cerebras", ("csk-",), r"[a-z0-9]{40,}"),
    ("e2b", ("e2b_",), r"[a-f0-9]{40}"),
    ("jina", ("jina_",), r"[A-Za-z0-9_-]{40,}"),
    ("firecrawl", ("fc-",), r"[a-f0-9]{32}" + _END),
    ("posthog", ("phx_", "phs_"), r"[A-Za-z0-9_]{40,}"),
    ("snyk", ("snyk_",), r"[a-z]{3}\.[A-Za-z0-9._-]{30,}"),
    ("temporal", ("tmprl_",), r"[A-Za-z0-9_.-]{20,}"),
    ("twilio", ("SK", "AC"), r"(?:[0-9a-f]{32}|x{32})" + _END),
    (
        "1password",
        ("A3-",),
        r"[A-Z0-9]{6}-(?:[A-Z0-9]{11}|[A-Z0-9]{6}-[A-Z0-9]{5})-[A-Z0-9]{5}-[A-Z0-9]{5}-[A-Z0-9]{5}" + _END,
    ),
    ("mailgun", ("key-", "pubkey-"), r"[0-9a-z]{32}" + _END),
    ("mapbox", ("sk.eyJ", "tk.eyJ"), r"[A-Za-z0-9_-]{20,}(?:\.[A-Za-z0-9_-]+)?"),
    ("adafruit", ("aio_",), r"[A-Za-z0-9]{28}" + _END),
    ("octopus", ("API-",), r"(?=[A-Z]*\d)[A-Z0-9]{26}" + _END),
    ("scalingo", ("tk-us-",), r"[A-Za-z0-9_-]{48}"),
    ("clickhouse", ("4b1d",), r"(?=[A-Za-z0-9]*[G-Zg-z])[A-Za-z0-9]{38}" + _END),
    ("defined-networking", ("dnkey-",), r"[A-Za-z0-9=_-]{26}-[A-Za-z0-9=_-]{52}"),
    ("dependency-track", ("odt_",), r"[A-Za-z0-9]{32}" + _END),
    ("fleetbase", ("flb_live_", "flb_test_"), r"[A-Za-z0-9]{20,}"),
    ("flexport", ("shltm_",), r"[A-Za-z0-9_-]{40,}"),
    ("elevenlabs", ("sk_",), r"[a-f0-9]{48}" + _END),
    ("authress", ("authress_", "scauth_"), r"[A-Za-z0-9]{5,30}\.[A-Za-z0-9]{4,6}\.acc[_-][A-Za-z0-9.+/_=-]{40,}"),
    ("discord", ("mfa.",), r"[A-Za-z0-9_-]{20,}"),
    ("gocardless", ("live_",), r"(?=[A-Za-z_-]{0,38}\d)[A-Za-z0-9_-]{40}" + _END),
    ("launchdarkly", ("api-", "sdk-", "mob-"), _UUID + _END),
    ("axiom", ("xaat-", "xapt-", "xait-"), _UUID + _END),
    ("razorpay", ("rzp_live_", "rzp_test_"), r"[A-Za-z0-9]{14,}"),
    ("scaleway", ("SCW",), r"(?=[A-Z]{0,16}\d)[A-Z0-9]{17}" + _END),
    ("aws", ("FwoGZXIvYXdz", "FQoGZXIvYXdz", "IQoJb3JpZ2lu"), r"[A-Za-z0-9+/]{80,}={0,2}"),
    ("trello", ("ATTA",), r"[a-f0-9]{64}[A-Z0-9]{8}" + _END),
    ("yandex", ("t1.",), r"[A-Za-z0-9_-]{20,}={0,2}\.[A-Za-z0-9_-]{80,}={0,2}"),
    ("yandex", ("y0_",), r"[A-Za-z0-9_-]{50,}"),
    ("brave", ("BSA",), r"(?=[A-Za-z_-]{0,27}\d)[A-Za-z0-9_-]{27,28}" + _END),
    ("google", ("AQ.A",), r"[A-Za-z0-9_-]{40,}"),
    ("grafana", ("eyJrIjoi",), r"[A-Za-z0-9]{60,}={0,3}"),
    ("telnyx", ("KEY",), r"[0-9A-Z]{32}_[A-Za-z0-9]{22}" + _END),
)
"""Kind, prefixes, and the expression after a prefix."""

_ANCHORED: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("mailersend", ("mlsn.",), _START + r"mlsn\.[a-f0-9]{64}" + _END),
    ("neon", ("npg_",), _START + r"npg_(?=[A-Za-z]*\d)[A-Za-z0-9]{12,}"),
    ("infisical", ("st.",), _START + rf"st\.{_UUID}\.[a-f0-9]{{32}}\.[a-f0-9]{{32}}" + _END),
    ("linkedin", ("WPL_AP",), _START + r"WPL_AP\d\.[A-Za-z0-9]{12,}\.[A-Za-z0-9]{8,}={0,2}"),
    ("instagram", ("IGQV", "IGQW", "IGAA"), _START + r"IG(?:QV|QW|AA)[A-Za-z0-9_-]{80,}"),
    ("intercom", ("dG9rO",), _START + r"dG9rO[A-Za-z0-9+/]{40,}={0,2}"),
    ("twitter", ("AAAAAAAAAAAAAAAAAAAAA",), _START + r"A{21,}(?=[A-Za-z0-9%]{0,80}\d)[A-Za-z0-9%]{40,}"),
    ("salesforce", ("00D",), _START + r"00D[A-Za-z0-9]{12,15}![A-Za-z0-9._]{80,}"),
    ("adyen", ("AQE",), _START + r"AQE[A-Za-z0-9+/]{60,}=?-[A-Za-z0-9+/]{32,}=?-[A-Za-z0-9]{8,}"),
    ("aws", ("AKIA", "ASIA", "ABIA", "ACCA"), _START + r"A[A-Z]{3}[A-Z0-9]{16}" + _END),
    ("aws", ("A3T",), _START + r"A3T[A-Z0-9]{17}" + _END),
    ("aws", ("ABSK",), _START + r"ABSK[A-Za-z0-9]{12}[A-Za-z0-9+/]{80,}={0,2}"),
    ("aws", ("bedrock-api-key-",), r"bedrock-api-key-(?P<v>[A-Za-z0-9+/=]{40,})"),
    ("square", ("EAAA",), _START + r"EAAA[A-Za-z0-9_-]{60}" + _END),
    ("facebook", ("EAA",), _START + r"EAA[A-Za-z0-9]{91,}"),
    ("sendgrid", ("SG.",), _START + r"SG\.[A-Za-z0-9_-]{20,24}\.[A-Za-z0-9_-]{39,50}"),
    ("lob", ("live_",), _START + r"live_[a-f0-9]{35}" + _END),
    (
        "jwt",
        ("eyJ",),
        _LONE + r"eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*){0,3}",
    ),
    (
        "jwt",
        ("eyJ",),
        _LONE + r"eyJ[A-Za-z0-9_-]{16,}(?:\.[A-Za-z0-9_-]*){3}\.[A-Za-z0-9_-]{10,}",
    ),
    (
        "api-key",
        ("sk-", "pk-", "rk-"),
        _START + r"[spr]k-(?:(?=[A-Za-z_-]{0,64}+\d)[A-Za-z0-9_-]{16,}|[A-Za-z0-9]{20,})",
    ),
)
"""Kind, literals at the start of a match, and the whole expression."""

_IN_CONTEXT: tuple[tuple[str, tuple[str, ...], str], ...] = (
    (
        "slack-webhook",
        ("hooks.slack.com/",),
        r"hooks\.slack\.com/(?P<v>(?:services|workflows|triggers)/[A-Za-z0-9+/_-]{20,})",
    ),
    ("discord-webhook", ("/api/webhooks/",), r"/api/webhooks/(?P<v>\d{15,21}/[A-Za-z0-9_-]{40,})"),
    ("teams-webhook", ("webhook.office.com/",), r"webhook\.office\.com/webhookb2/(?P<v>[A-Za-z0-9@/-]{80,})"),
    ("zapier-webhook", ("hooks.zapier.com/",), r"hooks\.zapier\.com/hooks/catch/(?P<v>\d+/[A-Za-z0-9]{6,})"),
    ("azure", ("SharedAccessKey=", "AccountKey="), r"\w+Key=(?P<v>[A-Za-z0-9+/]{40,}={0,2})"),
    ("azure-sas", ("sig=",), r"sig=(?P<v>[A-Za-z0-9%+/]{40,}(?:%3[Dd]|=){0,4})"),
    (
        "aws-signature",
        ("X-Amz-",),
        r"X-Amz-(?:Signature|Security-Token|Credential)=(?P<v>[A-Za-z0-9%+/=_-]{16,})",
    ),
    (
        "url-password",
        ("://",),
        r"://[^\s/?#@:\"'<>`{}$]{0,256}+:(?P<v>[^\s/?#\"'<>`\\]{1,512})@(?=[A-Za-z0-9\[%.-])",
    ),
    ("url-token", ("://",), r"://(?P<v>(?=[A-Za-z_-]{0,200}\d)[A-Za-z0-9_-]{20,200}+)(?::[\w-]{0,64})?@"),
    ("docker", ('"auth',), r'"auth\\{0,8}"\s{0,8}:\s{0,8}\\{0,8}"(?P<v>[A-Za-z0-9+/=]{12,})'),
    ("npm", ("_auth",), r"_auth(?:Token)?[ ]?=[ ]?\"?(?P<v>[A-Za-z0-9+/=_-]{12,})"),
    (
        "curl-password",
        ("curl ",),
        r"curl [^\n]{0,400}?(?:-u|--user)[ =]['\"]?[^\s:'\"]{1,64}:(?P<v>[^\s'\"]{3,256})",
    ),
    ("mysql-password", ("mysql",), r"mysql\w{0,8} (?:[^\n]{0,200}? )?-p(?P<v>[^\s'\"-][^\s'\"]{3,256})"),
    ("stripe", ("whsec_",), _START + r"whsec_[A-Za-z0-9+/=]{16,}"),
    ("grafana", ("glc_",), _START + r"glc_[A-Za-z0-9+/=]{32,}"),
    ("1password", ("ops_eyJ",), _START + r"ops_eyJ[A-Za-z0-9+/_-]{60,}={0,3}"),
    ("fly", ("FlyV1 ",), r"FlyV1 (?P<v>fm\d[a-z]?_[A-Za-z0-9+/=_,-]{32,})"),
    (
        "braintree",
        ("access_token$production$",),
        r"access_token\$production\$(?P<v>[0-9a-z]{16}\$[0-9a-f]{32})",
    ),
    ("opsgenie", ("GenieKey ",), rf"GenieKey (?P<v>{_UUID})"),
    ("okta", ("SSWS ",), r"SSWS (?P<v>00[A-Za-z0-9_-]{40})"),
    ("infura", ("infura.io/",), r"infura\.io/(?:ws/)?v3/(?P<v>[a-f0-9]{32})"),
    ("alchemy", (".alchemy.com/v2/",), r"\.alchemy\.com/v2/(?P<v>[A-Za-z0-9_-]{21,})"),
    (
        "password-hash",
        ("$apr1$", "$1$", "$5$", "$6$"),
        r"\$(?:apr1|1|5|6)\$(?P<v>(?:rounds=\d+\$)?[A-Za-z0-9./]{1,16}\$[A-Za-z0-9./]{22,86})",
    ),
    ("password-hash", ("$2a$", "$2b$", "$2y$"), r"\$2[aby]\$\d\d\$(?P<v>[A-Za-z0-9./]{53})"),
    ("password-hash", ("$argon2", "$y$"), r"\$(?:argon2(?:id|i|d)|y)\$(?P<v>[A-Za-z0-9+/.=,$]{40,})"),
    ("sshpass", ("sshpass -p",), r"sshpass -p ?['\"]?(?P<v>[^\s'\"]{3,256})"),
)
"""Secrets identified by their context: kind, literals at the start of a match, and the whole expression."""

_INSIDE: tuple[tuple[bytes, str, str], ...] = (
    (rb"\.atlasv1\.", "terraform", r"[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{60,}"),
    (rb"AA[A-Za-z0-9_-]{32}", "telegram", r"(?:bot)?(?P<v>\d{8,10}:AA[A-Za-z0-9_-]{32,33})(?![A-Za-z0-9_-])"),
    (rb"_mmk", "maxmind", r"[A-Za-z0-9]{6}_[A-Za-z0-9]{29}_mmk"),
    (rb"Q~", "azure", r"[A-Za-z0-9_~.]{3}\dQ~[A-Za-z0-9_~.-]{31,34}"),
    (rb"-us\d", "mailchimp", r"[0-9a-f]{32}-us\d{1,2}" + _END),
    (
        rb"\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27}",
        "discord",
        r"[MNOA][A-Za-z0-9]{23,25}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,38}(?![A-Za-z0-9_-])",
    ),
    (rb"(?<![a-f0-9])[a-f0-9]{64}", "resume-token", r"(?P<v>\d{1,18}:\d{1,18}:[12]\d{9}:[a-f0-9]{64})" + _END),
    (rb"APA91b", "firebase", r"(?P<v>[A-Za-z0-9_-]{11,22}:APA91b[A-Za-z0-9_-]{120,})"),
    (rb"_P0A1_", "webex", r"[A-Za-z0-9_-]{40,80}_P0A1_" + _UUID),
    (rb"-[a-f0-9]{8}-[a-f0-9]{8}", "mailgun", r"[a-f0-9]{32}-[a-f0-9]{8}-[a-f0-9]{8}" + _END),
    (rb"-[A-Za-z0-9]{40}", "twitter", r"\d{15,20}-(?=[a-z0-9]{0,39}[A-Z])[A-Za-z0-9]{40}" + _END),
    (
        rb"(?<![a-f0-9])[a-f0-9]{32}(?![a-f0-9])",
        "asana",
        rf"(?P<v>(?:[12]/\d{{13,19}}(?:/\d{{13,19}})?|{_UUID}):[a-f0-9]{{32}})" + _END,
    ),
    (rb"NRAL", "newrelic", r"[a-f0-9]{36}NRAL" + _END),
    (rb"\.[a-f0-9]{64}", "airtable", r"pat[A-Za-z0-9]{14}\.[a-f0-9]{64}"),
    (rb"\.[a-f0-9]{24}\.", "harness", r"[ps]at\.[A-Za-z0-9_-]{22}\.[a-f0-9]{24}\.[A-Za-z0-9]{20}"),
)
"""A fast marker to look for in the long words, the kind, and the expression after the start of a word."""

_AMONG_SIGNS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("google", ("1//0",), _START + r"1//0[A-Za-z0-9_-]{40,}"),
)
"""Kind, literals at the start of a match that are not words, and the whole expression."""


class KeyFormats(NamedTuple):
    """All formats, by the text that must be present to try them."""

    by_opening: dict[bytes, tuple[KeyFormat, ...]]
    """Formats of one long word, by its first four characters."""
    in_context: tuple[KeyFormat, ...]
    """Formats identified by an address or a command; tried on every text."""
    among_signs: tuple[KeyFormat, ...]
    """Formats that don't start with a word; tried if there are long words."""
    inside: tuple[tuple[re.Pattern[bytes], KeyFormat], ...]
    """Formats without a specific prefix, each with a marker that must occur in the long words."""


@functools.cache
def build_key_formats() -> KeyFormats:
    """Build the tables of formats, once per process."""
    by_opening: dict[bytes, tuple[KeyFormat, ...]] = {}
    for key_format in _word_formats():
        for opening in {opening for literal in key_format.literals for opening in _openings(literal)}:
            by_opening[opening] = (*by_opening.get(opening, ()), key_format)
    return KeyFormats(
        by_opening=by_opening,
        in_context=tuple(KeyFormat(*row) for row in _IN_CONTEXT),
        among_signs=tuple(KeyFormat(*row) for row in _AMONG_SIGNS),
        inside=tuple(
            (re.compile(sign), KeyFormat(kind, (), _START + regex, anchored=False)) for sign, kind, regex in _INSIDE
        ),
    )


@functools.cache
def list_literals() -> frozenset[str]:
    """List the prefixes of all keys and of their contexts."""
    formats = build_key_formats()
    in_words = (each for row in formats.by_opening.values() for each in row)
    known = [*formats.among_signs, *in_words, *formats.in_context]
    return frozenset(literal for each in known for literal in each.literals)


def _word_formats() -> list[KeyFormat]:
    prefixed = [
        KeyFormat(kind, literals, f"{_START}(?:{'|'.join(map(re.escape, literals))}){rest}")
        for kind, literals, rest in _AFTER_PREFIX
    ]
    return [*prefixed, *(KeyFormat(*row) for row in _ANCHORED)]


def _openings(literal: str) -> list[bytes]:
    """List the possible first four characters of a key with this prefix."""
    openings = [literal[:4]]
    if len(literal) == 2:
        # With two letters alone, every word that starts with them would be a candidate. The keys go on with one of
        # these.
        openings = [literal + digit for digit in "0123456789abcdefABCDEFx"]
    for _ in range(4 - len(openings[0])):
        openings = [opening + letter for opening in openings for letter in _WORD_CHARACTERS]
    return [opening.encode() for opening in openings]


class Span(NamedTuple):
    """The position of a secret. `context` is where the text that identifies it starts, such as its name."""

    start: int
    end: int
    context: int
    kind: str


PEM_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
PEM_BODY = re.compile(r"[A-Za-z0-9+/=:,. \t\r\n\\-]*+")

_RUN = b"a" * LONG_WORD
_WORD_BYTES = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-~\\"
_SHAPE = bytes(0x61 if byte in _WORD_BYTES else 0x20 for byte in range(256))
_WORDS = bytes(byte if byte in _WORD_BYTES else 0x20 for byte in range(256))
_SEGMENT = re.compile(rb"(?<![A-Za-z0-9])[A-Za-z0-9][A-Za-z0-9_.-]{3}")
_MIN_PEM = 16
_REST = re.compile(r"[A-Za-z0-9_-]+")


def get_long_words(text: bytes) -> bytes:
    """Return the words that are long enough for a key, separated by spaces; empty for most prose."""
    if _RUN not in text.translate(_SHAPE):
        return b""
    return b" ".join([word for word in text.translate(_WORDS).split() if len(word) >= LONG_WORD])


class FormatFinder:
    """Finds secrets by their format. Immutable, so it can be shared between tasks and threads."""

    def __init__(self) -> None:
        self._formats = build_key_formats()

    def find(self, text: str, *, words: bytes) -> Iterator[Span]:
        """Yield the keys in a text. `words` has its long words."""
        for key_format in self._candidates(text, words):
            yield from list_keys(key_format, text)
        if "-----BEGIN" in text:
            yield from _list_private_keys(text)

    def _candidates(self, text: str, words: bytes) -> list[KeyFormat]:
        formats = [each for each in self._formats.in_context for literal in each.literals if literal in text]
        if not words:
            return formats
        if b"\\" in words:  # the `n` of an escaped line feed would look like the first letter of the next word
            words = words.replace(b"\\n", b"  ").replace(b"\\r", b"  ").replace(b"\\t", b"  ")
        openings = self._formats.by_opening.keys() & set(_SEGMENT.findall(words))
        formats += dict.fromkeys(key_format for opening in openings for key_format in self._formats.by_opening[opening])
        formats += self._formats.among_signs
        formats += [inside for sign, inside in self._formats.inside if sign.search(words)]
        return formats


def list_keys(key_format: KeyFormat, text: str) -> Iterator[Span]:
    """Yield every key of one format."""
    group = "v" if "v" in key_format.regex.groupindex else 0
    for match in _matches(key_format, text):
        start, end = match.span(group)
        if not is_code_or_placeholder(match[group], quoted=True):
            yield Span(start, _word_end(text, end), match.start(), key_format.kind)


def _word_end(text: str, end: int) -> int:
    """Return the end of the word in which a key ends, so that two keys without a space between them are both hidden."""
    if text[end - 1 : end].isalnum() and (rest := _REST.match(text, end)):
        return rest.end()
    return end


def _matches(key_format: KeyFormat, text: str) -> Iterator[re.Match[str]]:
    regex = key_format.regex
    if not key_format.anchored:
        yield from regex.finditer(text)
        return
    for literal in key_format.literals:
        at = text.find(literal)
        while at >= 0:
            match = regex.match(text, at)
            if match:
                yield match
            at = text.find(literal, match.end() if match else at + len(literal))


def _list_private_keys(text: str) -> Iterator[Span]:
    at = 0
    while begin := PEM_BEGIN.search(text, at):
        stop = text.find("-----", begin.end())
        body = PEM_BODY.match(text, begin.end(), stop if stop >= 0 else len(text))
        at = body.end() if body else begin.end()
        # Texts about keys show the markers with nothing in between.
        if len(text[begin.end() : min(at, begin.end() + 4 * _MIN_PEM)].strip()) >= _MIN_PEM:
            yield Span(begin.end(), at, begin.start(), "private-key")
