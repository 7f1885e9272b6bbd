"""English function and filler words. They get a low weight instead of being removed, because phrases need them.

Function words are grammar ("the", "would"); filler words are courtesy, time and vague verbs ("please", "today", "get").
Other languages need no list: there, frequency in the catalog has the same effect.
"""

FUNCTION_WORDS = frozenset(
    """
a about above after again against all also am an and any anybody anyone anything are as at be because been before
being below between both but by can cannot could did do does doing done down during each either else etc ever every
everybody everyone everything few for from further had has have having he hence her here hers herself him himself his
how however i if in into is it its itself just let lets may me might mine more most much must my myself neither no
nobody none nor not nothing now of off on once one only onto or other others ought our ours ourselves out over own per
perhaps please rather same shall she should since so some somebody someone something somewhere still such than that the
their theirs them themselves then there therefore these they this those though through thus to together too toward
towards under until up upon us very via was we were what whatever when whenever where wherever whether which while who
whoever whom whose why will with within without would yes yet you your yours yourself yourselves
ve re ll don doesn didn isn aren wasn weren won wouldn couldn shouldn hasn haven hadn t s d m im ive id dont cant wont
thats whats
""".split()  # noqa: SIM905 - a list of 300 strings is harder to read
)

FILLER_WORDS = frozenset(
    """
able accordingly actual actually additional additionally afterwards ago ahead almost along already although always
amount another anyway apart apparently appreciate around ask asked asking asks assist assistance available away back
bad basically become becomes best better big bit brief briefly bring bunch call called came care carefully certain
certainly cheers clear clearly come comes coming consider considering couple course curious currently day days dear
definitely despite different difficult directly easily easy enough entire entirely especially exact exactly example
fact far feel feeling felt final finally fine first five following former four fully gave general get gets getting
give given gives giving glad go goes going gone gonna good got gotta great guess guys half happen happened happening
happens happy hard hardly hello help helped helpful helping helps hey hi hope hopefully idea ideally immediately
important include included includes including indeed instead interested interesting involving issue keep keeps kept
kind kinda knew know known knows largely last lately later least left less like liked likely likes little long look
looked looking looks lot lots love lovely made main mainly make makes making many matter maybe mean means meanwhile
mention mentioned mere merely mind moreover mostly name namely near nearly necessary need needed needs never
nevertheless new next nice non normally noted obtain obviously often oh ok okay old otherwise overall particular
particularly part past people place possible possibly prefer preferably presumably pretty previous previously probably
problem properly proper provide provided provides providing purpose put quick quickly quite ready real really
reasonable reasonably recent recently regarding regardless regards related relatively relevant respectively right said
saw say saying says second secondly see seeing seem seemed seems seen seriously serious several show similar similarly
simple simply situation small somehow somewhat soon sorry sort specific specifically specify specified start started
stuff sub suggest suggestion suppose supposed sure take taken takes taking talk tell telling tends thank thanks thing
things think thinking third thorough thoroughly thought three throughout time times today told tomorrow tonight took
totally tried tries true truly try trying turn turns twice two type typical typically unless unlikely use used useful
user users uses using usual usually various version wait want wanted wants watch way ways week weeks well went whole
wish wonder wondering word words work worked working works worth wrong year years yesterday skill skills
""".split()  # noqa: SIM905 - a list of 300 strings is harder to read
)
